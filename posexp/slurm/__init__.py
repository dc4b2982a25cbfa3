"""Slurm, a launcher: the runs of a sweep as jobs of a cluster."""
