"""Runs on texts: classes, ratings, tags, pairs, rankings; models of ours, and Hugging Face's trained further."""
