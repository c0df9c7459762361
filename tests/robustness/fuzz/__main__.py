"""Read many corrupt and hostile inputs. Every input must be read, or refused with an error message of one line.

Inputs are data files, model directories, run directories, studies and pages. Each is read with limits of time and
memory. It is a finding if an input leads to another exception, a crash, a connection, a process, unpickled objects,
foreign code, or a file outside of the output directory; if it exceeds a limit; or if the result is wrong.

examples:
  python -m tests.robustness.fuzz --inputs 250000 --processes 16
  python -m tests.robustness.fuzz --record fuzz.jsonl  # can be stopped and continued
  python -m tests.robustness.fuzz --only 4711        # repeat one input, and print what happens
  python -m tests.robustness.fuzz --kinds 'text run' csv --inputs 2000
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from tests.robustness.fuzz.record import Record
from tests.robustness.fuzz.run import fuzz, repeat
from tests.robustness.fuzz.worker import Limits


def main() -> int:
    """Run the command; return 1 if there are findings."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--inputs", type=int, default=250_000, help="number of inputs (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="number of the first input (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: the number of processors")
    parser.add_argument("--kinds", nargs="+", default=(), metavar="NAME", help="only kinds whose names start so")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one input")
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-findings"), help="directory for findings (default: %(default)s)"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="continue the run of this record, or start one")
    parser.add_argument("--table", action="store_true", help="only print the record as a table for the documentation")
    parser.add_argument("--memory", type=float, default=2, help="GiB of memory for each input (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=20, help="computing time for each input (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.table:
        if not arguments.record:
            parser.error("--table needs --record")
        print(Record(arguments.record).table())
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the workers and deletes their files
    limits = Limits(memory=int(arguments.memory * 2**30), cpu_seconds=arguments.seconds)
    if arguments.only is not None:
        return repeat(arguments.only, arguments.out, limits)
    if arguments.record and arguments.kinds:
        parser.error("--record is not possible with --kinds")
    numbers = range(arguments.start, arguments.start + arguments.inputs)
    result = fuzz(numbers, arguments.processes, arguments.out, limits, tuple(arguments.kinds), arguments.record)
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())
