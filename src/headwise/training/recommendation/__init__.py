"""Runs on click logs: a recommender, trained on what was clicked and what was not."""
