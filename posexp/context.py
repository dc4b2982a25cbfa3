"""Measure losses by context: `python -m posexp.context RUN --at 16,32,64`."""

from posexp.language.context import main

if __name__ == "__main__":
  main()
