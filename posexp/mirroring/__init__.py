"""What Weights & Biases is told of runs and groups."""
