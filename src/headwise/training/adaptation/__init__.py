"""Continued pre-training of encoders on unlabelled texts: `headwise adapt`."""
