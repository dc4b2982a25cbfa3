"""Parse with a trained run: `python -m posexp.parse RUN "The cat sat ."`."""

from posexp.parsing.command import main

if __name__ == "__main__":
  main()
