"""The connection to a Ray cluster: every mistake is one line."""

import signal
import socket
import sys
from pathlib import Path

import pytest

from headwise.cli import main
from headwise.cli.study_options import resume_hint
from headwise.cli.train import describe_stop
from headwise.cluster import connected_to_cluster, log_ray_message
from headwise.errors import UserError
from headwise.training.ray_train import fit, print_appended


def test_missing_ray_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"--cluster: needs Ray; pip install 'headwise\[cluster\]'"):
        connected_to_cluster("auto").__enter__()


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001"])
def test_malformed_address_is_one_line(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=f"--cluster {address}: expected auto or HOST:PORT"):
        connected_to_cluster(address).__enter__()


def test_several_clusters_on_this_machine_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    services = pytest.importorskip("ray._private.services")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", lambda *args, **options: None)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: {"10.0.0.1:6379", "10.0.0.1:6399"})
    with pytest.raises(UserError, match="several Ray clusters run on this machine; use --cluster HOST:PORT"):
        connected_to_cluster("auto").__enter__()


def test_silent_address_is_one_line() -> None:
    """Ray itself would wait for minutes, and then end the process."""
    pytest.importorskip("ray")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(UserError, match=rf"no Ray cluster answers at .*:{port} .*; start one with: ray start"):
            connected_to_cluster(f"127.0.0.1:{port}").__enter__()


def test_messages_of_ray_are_logged_in_one_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray prints them to stdout, which is for results."""
    lines = [
        "A worker died. To troubleshoot the problem, check the logs.\n",
        "The task is retried. Error:\nTrace\n",
        "",
    ]
    log_ray_message({"lines": lines, "pid": "raylet"})
    assert caplog.messages == ["Ray: A worker died.", "Ray: The task is retried.", "Ray: "]
    assert capsys.readouterr().out == ""


def test_long_messages_of_ray_end_at_a_word(caplog: pytest.LogCaptureFixture) -> None:
    log_ray_message({"lines": ["reason " * 100], "pid": "raylet"})
    (message,) = caplog.messages
    assert set(message.removeprefix("Ray: ").removesuffix(" …").split()) == {"reason"}
    assert len(message) < 250


def test_silent_cluster_leaves_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command works once the cluster runs."""
    pytest.importorskip("ray")
    data = tmp_path / "reviews.csv"
    data.write_text("text,label\n" + "good,1\nbad,0\n" * 20, encoding="utf-8")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        arguments = ["--data", str(data), "--methods", "none", "--out", str(tmp_path / "study"), "--cluster", address]
        assert main(["compare", *arguments]) == 2
    assert "no Ray cluster answers" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(("cluster", "option"), [(None, ""), ("auto", " --cluster auto")])
def test_interrupted_study_is_continued_on_its_cluster(
    cluster: str | None, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt), resume_hint("compare", Path("my study"), cluster):
        raise KeyboardInterrupt
    assert caplog.messages == [f"\nInterrupted. To continue: headwise compare --resume --out 'my study'{option}"]


def test_interrupted_training_is_no_success(tmp_path: Path) -> None:
    """Ray Train handles Ctrl-C itself, and exits with code 0."""

    class InterruptedTrainer:
        def fit(self) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            sys.exit(0)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(InterruptedTrainer())
    assert signal.getsignal(signal.SIGINT) is handler
    (tmp_path / "run.yaml").touch()
    assert describe_stop(tmp_path, "auto").endswith(f"headwise train --resume --out {tmp_path} --cluster auto")


def test_output_of_a_process_that_died_ends_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("died", "labels: 2\n  0%|     | 0/8"), ("ended", "labels: 2\n"), ("silent", "")):
        (tmp_path / name).write_text(text)
        with print_appended(tmp_path / name):
            pass
        assert capsys.readouterr().err == (f"{text}\n" if name == "died" else text)
