"""Models: the Transformer stack, attention, decoding, and models with an output layer."""
