"""Measure what a text costs a language model: `python -m posexp.score RUN letter.txt`."""

from posexp.language.score import main

if __name__ == "__main__":
  main()
