"""Write on with a language model: `python -m posexp.generate RUN "This film"`."""

from posexp.language.generate import main

if __name__ == "__main__":
  main()
