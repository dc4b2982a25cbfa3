"""Folders of runs: written while they are trained, and read back."""
