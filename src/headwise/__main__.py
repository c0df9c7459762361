"""The command line as `python -m headwise`, for `torchrun -m` and `accelerate launch -m`."""

import sys

from headwise.cli import main

sys.exit(main())
