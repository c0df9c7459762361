"""Data that is made up, with its truth known: how well anyone could do on it."""
