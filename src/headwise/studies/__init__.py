"""Many runs, and one answer that can be believed: comparisons, sweeps, and the papers' own studies again."""
