"""Training of translators: an encoder and a decoder, from scratch, on pairs of sentences."""
