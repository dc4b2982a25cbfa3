"""Rank encodings of a suite, or add a row: `python -m posexp.leaderboard encoding=rope`."""

from posexp.board.command import main

if __name__ == "__main__":
  main()
