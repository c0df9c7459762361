"""The connection to a Ray cluster: every mistake is one line."""

import socket
import sys

import pytest

from headwise.cluster import connected_to_cluster, log_ray_message
from headwise.errors import UserError


def test_missing_ray_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"--cluster: needs Ray; pip install 'headwise\[cluster\]'"):
        connected_to_cluster("auto").__enter__()


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001"])
def test_malformed_address_is_one_line(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=f"--cluster {address}: expected auto or HOST:PORT"):
        connected_to_cluster(address).__enter__()


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
    log_ray_message({"lines": ["A worker died.\nTo troubleshoot, check the logs.\n"], "pid": "raylet"})
    assert caplog.messages == ["Ray: A worker died."]
    assert capsys.readouterr().out == ""
