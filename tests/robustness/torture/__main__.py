"""Torture: kill commands, start them twice at once, take away their database and memory, and let the clock jump.

It ends with a table of what was done and what held; Ctrl-C ends it early. With --dir, it can be continued.

examples:
  python -m tests.robustness.torture
  python -m tests.robustness.torture --size 0.05 --processes 8
  python -m tests.robustness.torture --kinds text clock --seed 7
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.robustness.torture.torture import KINDS, Torture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0, help="factor of all counts (default: 1, the full form)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="cases at the same time (default: 2)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default: 0)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="for the cases; what was begun there is continued")
    parser.add_argument("--table", action="store_true", help="only print what was done in --dir, for the documentation")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, which stops the database server
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="headwise-torture-"))
    torture = Torture(directory, arguments.kinds, arguments.size, arguments.processes, arguments.seed)
    if arguments.table:
        print(torture.table())
        return 0
    torture.run()
    code = torture.report()
    if not code and not arguments.dir:
        shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
