"""Send runs to Weights & Biases after the fact: `python -m posexp.sync RUNS`."""

from posexp.wandb.command import main

if __name__ == "__main__":
  main()
