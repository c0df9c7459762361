"""Check a release: build wheel and sdist, install the wheel in an empty environment and run the demo from it.

    make release-check

The wheel is installed with its extras `train` and `demo`, and the demo runs with --short. Nothing is uploaded.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for wheel and sdist; it is emptied")
    parser.add_argument("--no-install", action="store_true", help="build and check only")
    arguments = parser.parse_args()

    shutil.rmtree(arguments.out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", arguments.out, ROOT)
    wheel, sdist = only_match(arguments.out, "*.whl"), only_match(arguments.out, "*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)

    version = wheel.name.split("-")[1]
    heading = find_heading(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if heading is None:
        print(f"CHANGELOG.md has no entry for {version}", file=sys.stderr)
        return 1
    print(f"CHANGELOG.md has {heading}")

    if not arguments.no_install:
        with tempfile.TemporaryDirectory() as directory:
            run_installed(wheel, Path(directory))
    print(f"{version} is ready: {wheel.name}, {sdist.name}")
    return 0


def find_heading(version: str, changelog: str) -> str | None:
    """Return the changelog's heading for a version, or None. Development versions belong to [Unreleased].

    >>> changelog = "## [Unreleased]\\n## [0.2.0] - 2027-01-01"
    >>> find_heading("0.2.0", changelog), find_heading("0.2.1.dev3+g12ab", changelog)
    ('[0.2.0]', '[Unreleased]')
    >>> find_heading("0.3.0", changelog) is None
    True
    """
    heading = "[Unreleased]" if re.search(r"dev|\+", version) else f"[{version}]"
    return heading if re.search(rf"^## {re.escape(heading)}", changelog, re.M) else None


def run_installed(wheel: Path, directory: Path) -> None:
    """Install the wheel in a new virtual environment and run the demo and an inspection, without the sources."""
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    constraints = ROOT / "constraints.txt"
    options = ["--quiet", "--no-compile", "--constraint", constraints]
    run(python, "-m", "pip", "install", *options, f"{wheel}[train,demo]")
    shutil.copy(ROOT / "examples" / "demo.py", directory)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    run(python, "-m", "headwise", "--version", cwd=directory, env=env)
    run(python, "demo.py", "--short", "--out", "demo", cwd=directory, env=env)
    assert (directory / "demo" / "comparison" / "report.html").is_file()
    inspect = ["inspect", "demo/model", "--text", "A fine film.", "--out", "page.html"]
    run(python, "-m", "headwise", *inspect, cwd=directory, env=env)
    assert (directory / "page.html").is_file()


def only_match(directory: Path, pattern: str) -> Path:
    """Return the only file that matches a pattern."""
    (path,) = directory.glob(pattern)
    return path


def run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Print a command and run it."""
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    sys.exit(main())
