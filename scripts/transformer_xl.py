"""Hold posexp's Transformer-XL against its authors': `python scripts/transformer_xl.py --help`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from recurrence import agreement

from posexp.config.arguments import Parser, run
from posexp.errors import UserError

AUTHORS = Path(agreement.__file__).with_name("authors.py")
TOLERANCE = 1e-5
EXAMPLES = """\
The authors' code runs in a Python that has torch and numpy, on the folder `pytorch` of their
repository, https://github.com/kimiyoung/transformer-xl. It draws random weights and a text, and
writes both with its losses to a file, which posexp's model is then held against.

examples:
  python scripts/transformer_xl.py theirs.npz --source FOLDER --python ~/torch/bin/python
  python scripts/transformer_xl.py theirs.npz
"""


def write(file: Path, source: Path, python: str) -> None:
  """Have the authors' code write the file.

  Raises:
    UserError: it cannot.
  """
  program = shutil.which(python)
  if program is None:
    raise UserError(f"--python {python}: there is no such program")
  if not (source / "mem_transformer.py").is_file():
    raise UserError(f"--source {source}: no mem_transformer.py is there")
  found = subprocess.run(
    [program, "-I", str(AUTHORS), str(source.resolve()), str(file)],
    input=json.dumps([case._asdict() for case in agreement.CASES]),
    capture_output=True,
    text=True,
    check=False,
  )
  if found.returncode:
    said = found.stderr.strip().splitlines()
    raise UserError(f"{program} has failed: {said[-1] if said else 'it said nothing'}")


def main(argv: list[str]) -> None:
  """Print the largest difference of each case.

  Raises:
    UserError: the authors' code cannot be run, or posexp's numbers are not its.
  """
  parser = Parser("", f"Holds posexp's Transformer-XL against its authors'.\n\n{EXAMPLES}")
  parser.prog = "python scripts/transformer_xl.py"
  parser.add_argument("file", type=Path, help="of weights, text and losses, .npz")
  parser.add_argument("--source", type=Path, help="the authors' folder: write the file anew")
  parser.add_argument("--python", default=sys.executable, help="with torch; default: this one")
  args = parser.parse_args(argv)
  if args.source is not None:
    write(args.file, args.source, args.python)
  elif not args.file.is_file():
    raise UserError(f"{args.file}: no such file; --source has it written")
  try:
    theirs = agreement.read(args.file)
  except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
    raise UserError(f"{args.file} is damaged, or of another kind; --source writes it") from error
  rows, length = theirs.text.shape[0], theirs.text.shape[1] - 1
  print(f"torch {theirs.about['torch']}: {rows} × {length} tokens, {theirs.segment} in a segment")
  found = dict(agreement.differences(theirs))
  for what, apart in found.items():
    print(f"{what:<52}{apart:>10.1e}")
  if max(found.values()) > TOLERANCE:
    raise UserError(f"the largest difference is above {TOLERANCE}")


if __name__ == "__main__":
  run(main)
