"""Runs that learn to translate: an encoder and a decoder, trained on pairs of sentences."""
