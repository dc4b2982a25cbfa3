"""Weights & Biases, a tracker: runs as they are trained, or sent later by `posexp.sync`."""
