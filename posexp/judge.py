"""Say whether a gain is real, in results of anybody: `python -m posexp.judge A.csv B.csv`."""

from posexp.judging.command import main

if __name__ == "__main__":
  main()
