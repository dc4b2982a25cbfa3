"""Translate with a trained run: `python -m posexp.translate RUN "A man rides a bicycle."`."""

from posexp.translation.command import main

if __name__ == "__main__":
  main()
