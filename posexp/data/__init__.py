"""Data: where rows come from, how they are split, tokenized and laid out in batches."""
