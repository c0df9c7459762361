"""The text pipeline: classification, regression, tagging, text pairs and ranking."""
