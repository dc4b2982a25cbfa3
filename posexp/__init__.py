"""posexp: positional encodings for Transformers, compared on equal terms."""
