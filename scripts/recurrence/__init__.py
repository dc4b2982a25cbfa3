"""The authors' Transformer-XL beside posexp's: the same weights, the same text, the same losses."""
