"""Training of news recommenders on click logs."""
