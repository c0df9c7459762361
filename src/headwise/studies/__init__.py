"""Studies: many training runs, compared statistically. Comparisons, sweeps and reproductions of the papers' tables."""
