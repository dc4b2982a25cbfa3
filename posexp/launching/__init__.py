"""From what was typed to jobs: options, sweeps, and who trains them."""
