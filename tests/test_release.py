"""A wheel holds all that a user needs, and its version is the tag's."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in sources if path.suffix != ".pyc"}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert wanted <= held, wanted - held
    assert {name for name in held if not name.startswith("headwise/")} == {
        name for name in held if ".dist-info/" in name
    }
    for name in ("inspection/assets/viewer.html", "studies/papers/figures.yaml", "py.typed"):
        assert f"headwise/{name}" in held


def test_the_version_is_in_the_metadata(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel)
    (name,) = [name for name in held.namelist() if name.endswith("METADATA")]
    metadata = held.read(name).decode()
    version = wheel.name.split("-")[1]
    assert f"\nVersion: {version}\n" in metadata
    assert re.match(r"\d+\.\d+", version)
    assert "Provides-Extra: demo" in metadata


@pytest.mark.slow
def test_a_tag_is_the_version_and_a_clone_without_tags_has_one(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", str(ROOT), str(clone)], check=True)

    def built() -> str:
        command = [sys.executable, "-m", "hatchling", "version"]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout.strip()

    assert re.match(r"0\.[\d.]+\.dev\d+\+g", built())
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "tag", "v9.8.7"], cwd=clone, check=True)
    assert built() == "9.8.7"
    subprocess.run(["rm", "-rf", str(clone / ".git")], check=True)
    assert built() == "0.1.0.dev0"
