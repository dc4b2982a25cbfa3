"""Models: the Transformer stack, attention, decoding, and what reads their output."""
