"""Write a run as a folder that transformers loads: `python -m posexp.export RUN FOLDER`."""

from posexp.released.command import main

if __name__ == "__main__":
  main()
