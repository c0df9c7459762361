"""`python -m headwise`, which `torchrun -m` and `accelerate launch -m` need."""

import sys

from headwise.cli import main

sys.exit(main())
