"""Studies: many training runs, compared statistically. Comparisons, sweeps and reproductions of the papers' tables."""

from headwise._extras import require

require("studies", __name__)
