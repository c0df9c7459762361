"""The command line as `python -m headwise`, for `torchrun -m` and `accelerate launch -m`."""

import sys

from headwise.cli import main

if __name__ == "__main__":  # worker processes import this module, too
    sys.exit(main())
