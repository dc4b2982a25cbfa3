"""Measure a model of a diagnostic at other lengths: `python -m posexp.lengths RUN 20:100:5`."""

from posexp.diagnostics.command import main

if __name__ == "__main__":
  main()
