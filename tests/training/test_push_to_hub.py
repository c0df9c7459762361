"""`headwise train --push-to-hub`, with a stand-in for the hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from headwise.cli.train import describe_stop
from headwise.training.core.hub import without_paths
from headwise.training.text.config import TextConfig
from tests.training.conftest import Headwise
from tests.training.hub_server import HubServer, hub_server

TINY = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 1)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_token_of_the_test")
        yield server


def test_a_finished_run_is_uploaded(reviews: Path, tmp_path: Path, headwise: Headwise, hub: HubServer) -> None:
    out = tmp_path / "run"
    options = ("--push-to-hub", "me/reviews", "--hub-private-repo", *TINY)
    code, stdout, stderr = headwise("train", "--data", reviews, "--out", out, *options)
    assert code == 0, stderr
    assert f"Uploaded: {hub.url}/me/reviews/commit/" in stdout
    assert hub.private == {"me/reviews": True}
    files = hub.files["me/reviews"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "metrics.json", "run.yaml"} <= set(files)
    assert files["model.safetensors"] == (out / "model.safetensors").read_bytes()
    assert not any(name.startswith(("checkpoints", ".")) or "predictions" in name for name in files)
    assert yaml.safe_load(files["run.yaml"])["data"] == ["reviews.csv"]
    assert all(str(tmp_path).encode() not in content for content in files.values()), "no file names a path"
    assert "push_to_hub" not in (out / "run.yaml").read_text(), "a repeated run uploads nothing"


def test_errors_appear_before_training(reviews: Path, tmp_path: Path, headwise: Headwise, hub: HubServer) -> None:
    hub.is_read_only = True
    out = tmp_path / "run"
    code, _, stderr = headwise("train", "--data", reviews, "--out", out, "--push-to-hub", "me/reviews", *TINY)
    assert code == 2
    assert "error: --push-to-hub me/reviews: " in stderr
    assert "log in with hf auth login" in stderr
    assert len(stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_an_upload_that_fails_leaves_the_run(
    reviews: Path, tmp_path: Path, headwise: Headwise, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.training.core import hub as module

    create = module.create_repository

    def create_then_lock(repository: str, *, private: bool) -> str:
        name = create(repository, private=private)
        hub.is_read_only = True
        return name

    monkeypatch.setattr(module, "create_repository", create_then_lock)
    out = tmp_path / "run"
    code, _, stderr = headwise("train", "--data", reviews, "--out", out, "--push-to-hub", "me/reviews", *TINY)
    assert code == 2
    assert f"the finished run is in {out}" in stderr
    assert f"to upload it: headwise train --resume --out {out} --push-to-hub me/reviews" in stderr
    assert (out / "metrics.json").exists()
    monkeypatch.setattr(module, "create_repository", create)
    hub.is_read_only = False
    weights = (out / "model.safetensors").stat().st_mtime_ns
    code, stdout, stderr = headwise("train", "--resume", "--out", out, "--push-to-hub", "me/reviews")
    assert code == 0, stderr
    assert f"Uploaded: {hub.url}/me/reviews/commit/" in stdout
    assert {"model.safetensors", "run.yaml"} <= set(hub.files["me/reviews"])
    assert (out / "model.safetensors").stat().st_mtime_ns == weights, "nothing was trained again"


def test_paths_of_a_ranking_are_not_uploaded() -> None:
    config = TextConfig(
        label_type="ranking", queries=("/home/me/q.csv",), documents=("/home/me/d.csv",), relevance=("/home/me/r.csv",)
    )
    uploaded = yaml.safe_load(without_paths(config).to_yaml())
    assert (uploaded["queries"], uploaded["documents"], uploaded["relevance"]) == (["q.csv"], ["d.csv"], ["r.csv"])


def test_stopped_run_names_the_upload(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").touch()
    assert describe_stop(tmp_path, None, "me/reviews").endswith(f"--resume --out {tmp_path} --push-to-hub me/reviews")


def test_stopped_upload_names_the_command_that_repeats_it(tmp_path: Path) -> None:
    for name in ("run.yaml", "metrics.json"):
        (tmp_path / name).touch()
    assert describe_stop(tmp_path, None, "me/reviews").endswith(f"--resume --out {tmp_path} --push-to-hub me/reviews")
    assert "nothing was changed" in describe_stop(tmp_path, None)
    assert "nothing was changed" in describe_stop(tmp_path, None, "me/reviews", force=True)
