"""Is this ready to be released? Builds wheel and sdist, and lives with the wheel as a user would.

    make release-check

The wheel is installed with its extra `demo` into an empty virtual environment, and the demo runs from there in its
short form. Nothing is uploaded.
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
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for wheel and sdist, emptied first")
    parser.add_argument("--no-install", action="store_true", help="build and check only")
    options = parser.parse_args()

    shutil.rmtree(options.out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", options.out, ROOT)
    wheel, sdist = only(options.out, "*.whl"), only(options.out, "*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)

    version = wheel.name.split("-")[1]
    heading = told(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if heading is None:
        print(f"CHANGELOG.md has no entry for {version}", file=sys.stderr)
        return 1
    print(f"CHANGELOG.md has {heading}")

    if not options.no_install:
        with tempfile.TemporaryDirectory() as folder:
            live_with(wheel, Path(folder))
    print(f"{version} is ready: {wheel.name}, {sdist.name}")
    return 0


def told(version: str, changelog: str) -> str | None:
    """The changelog's heading for a version; what is between two releases is unreleased.

    >>> told("0.2.0", "## [Unreleased]\\n## [0.2.0] - 2027-01-01"), told("0.2.1.dev3+g12ab", "## [Unreleased]\\n")
    ('[0.2.0]', '[Unreleased]')
    >>> told("0.3.0", "## [Unreleased]\\n## [0.2.0] - 2027-01-01") is None
    True
    """
    wanted = "[Unreleased]" if re.search(r"dev|\\+", version) else f"[{version}]"
    return wanted if re.search(rf"^## {re.escape(wanted)}", changelog, re.M) else None


def live_with(wheel: Path, folder: Path) -> None:
    """Install the wheel where nothing else is, and run the demo from there, away from the sources."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]")
    shutil.copy(ROOT / "examples" / "demo.py", folder)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    run(python, "-m", "headwise", "--version", cwd=folder, env=alone)
    run(python, "demo.py", "--short", "--out", "demo", cwd=folder, env=alone)
    assert (folder / "demo" / "report.html").is_file()
    inspect = ["inspect", "demo/runs/as-it-is-0", "--text", "A fine film.", "--out", "page.html"]
    run(python, "-m", "headwise", *inspect, cwd=folder, env=alone)
    assert (folder / "page.html").is_file()


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=cwd, env=env, check=True)


if __name__ == "__main__":
    sys.exit(main())
