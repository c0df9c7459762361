"""Measure the CPU seconds of imports and of commands that only print a text.

    python benchmarks/startup.py --repeats 5

Each case runs in a new Python process. The cases are interleaved, and the median is reported.
"""

import argparse
import resource
import statistics
import subprocess
import sys

#: Cases by name, with their Python code.
CASES = {
    "python": "pass",
    "import torch": "import torch",
    "import headwise": "import headwise",
    "import headwise; headwise.attend": "import headwise; headwise.attend",
    "headwise --version": "from headwise.cli import main; main(['--version'])",
    "headwise --help": "from headwise.cli import main; main(['--help'])",
    "headwise train --help": "from headwise.cli import main; main(['train', '--help'])",
    "headwise bench --help": "from headwise.cli import main; main(['bench', '--help'])",
}

#: Largest CPU seconds of commands that print a text, and largest difference to `import torch`.
MAX_SECONDS = {name: 0.5 for name in CASES if name.startswith("headwise ")}
MAX_MORE_THAN_TORCH = {"import headwise": 0.1, "import headwise; headwise.attend": 0.1}


def cpu_seconds(code: str) -> float:
    """Run code in a new process and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds (default: 5)")
    arguments = parser.parse_args()
    for code in CASES.values():  # writes bytecode, reads files into memory
        cpu_seconds(code)
    rounds = [{name: cpu_seconds(code) for name, code in CASES.items()} for _ in range(arguments.repeats)]
    seconds = {name: statistics.median(times[name] for times in rounds) for name in CASES}
    more = {name: statistics.median(times[name] - times["import torch"] for times in rounds) for name in CASES}
    exceeded = False
    print("| | CPU seconds | limit |\n|---|---|---|")
    for name in CASES:
        limit, value = "", seconds[name]
        if name in MAX_SECONDS:
            limit, exceeded = f"{MAX_SECONDS[name]}", exceeded or value > MAX_SECONDS[name]
        if name in MAX_MORE_THAN_TORCH:
            limit = f"import torch + {MAX_MORE_THAN_TORCH[name]} (here {more[name]:+.2f})"
            exceeded = exceeded or more[name] > MAX_MORE_THAN_TORCH[name]
        print(f"| `{name}` | {value:.2f} | {limit} |")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
