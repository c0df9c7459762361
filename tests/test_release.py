"""The wheel: its files and its version."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headwise.small_files import read_yaml
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out_dir), str(ROOT)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    (path,) = out_dir.glob("*.whl")
    return path


def test_wheel_contains_all_files_of_the_package(wheel: Path) -> None:
    paths = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    sources = {path.relative_to(ROOT / "src").as_posix() for path in paths if path.suffix != ".pyc"}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert sources <= names, sources - names
    others = {name for name in names if not name.startswith("headwise/")}
    assert all(".dist-info/" in name for name in others), others
    for name in ("inspection/assets/viewer.html", "studies/papers/figures.yaml", "py.typed"):
        assert f"headwise/{name}" in names


def test_version_is_in_the_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    metadata = archive.read(name).decode()
    version = wheel.name.split("-")[1]
    assert f"\nVersion: {version}\n" in metadata
    assert re.match(r"\d+\.\d+", version)
    assert "Provides-Extra: demo" in metadata


def test_links_of_the_package_work_outside_the_repository(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    metadata = archive.read(name).decode()
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert len(links) >= 20
    assert [link for link in links if not link.startswith("https://")] == []
    url = re.search(r"^Project-URL: Homepage, (.+)$", metadata, re.M)
    assert url is not None
    assert f"]({url[1]}/blob/main/docs/tutorial.md)" in metadata
    assert "](https://raw.githubusercontent.com/" in metadata  # images


@pytest.mark.slow
def test_version_comes_from_the_git_tag(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", str(ROOT), str(clone)], check=True)

    def get_version() -> str:
        command = [sys.executable, "-m", "hatchling", "version"]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout.strip()

    assert re.match(r"0\.[\d.]+\.dev\d+\+g", get_version())
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "tag", "v9.8.7"], cwd=clone, check=True)
    assert get_version() == "9.8.7"
    shutil.rmtree(clone / ".git")
    assert get_version() == "0.1.0.dev0"


def test_citation_names_the_released_version() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    released = re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert (citation["version"], citation["date-released"]) == released[0]
    assert citation["license"] == "Apache-2.0"
    assert len(citation["references"]) == 3
