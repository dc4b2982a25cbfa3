"""The documents of a corpus, byte for byte: written once from their source to files, in splits."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posexp import storage
from posexp.data import files, hub, sources, splits, store, writing
from posexp.data.splits import SPLITS
from posexp.errors import UserError
from posexp.language import vocabulary

# Data sets of the hub whose rows are the lines of one running text, with their ends; and the bytes
# of the line where a row is empty.
LINES = {"Salesforce/wikitext": b" \n"}

SHARE = 0.05  # of the training text, held out for each split that is not given
LEAST = 2  # bytes of a split: one is predicted from the other


class Texts(NamedTuple):
  """The texts of a split, read once."""

  parts: Iterator[bytes]  # its documents, or the blocks of its only one
  single: bool  # whether there is but one


class Documents(NamedTuple):
  """The documents of a split, end to end, and counts of their text.

  A word is what stands between blanks, and each end of a line is one more, as the literature
  counts the words of WikiText and PTB. Nothing is counted for the end of a document.
  """

  content: np.ndarray  # uint8 [bytes], mapped into memory
  starts: np.ndarray  # int64 [documents + 1], where each begins in `content`, and the end
  chars: int
  words: int

  @property
  def bytes(self) -> int:
    return len(self.content)

  @property
  def beginning(self) -> str:
    return self.content[: writing.SAMPLE].tobytes().decode(errors="ignore")

  def texts(self) -> Iterator[memoryview]:
    """Yield the documents one by one."""
    view = self.content.data
    return (view[start:end] for start, end in itertools.pairwise(self.starts.tolist()))


def _mapped(folder: Path, split: str) -> np.ndarray:
  return np.memmap(folder / f"{split}.text", np.uint8, "r")


def read(task) -> tuple[dict[str, Documents], list[str], str]:
  """Return the documents by split, notes on how the splits were made, and a digest of all of it.

  For each of validation and test that is not given, a twentieth of the training text is held out:
  documents by a hash of their content; of a single one its end, so that the last twentieth is
  the test split.

  Args:
    task: the options of a `LanguageModeling`.

  Raises:
    UserError: for what is missing, broken, or too short.
  """
  given = sorted(sources.given(task))
  digest = storage.digest(sources.identity(task), given, splits.RECIPE)
  fill = functools.partial(_write, task=task)
  kept, notes = store.opened(f"documents/{digest}", fill, _read)
  return kept, [*sources.notes(task), *notes], digest


def _read(folder: Path, about: dict) -> tuple[dict[str, Documents], list[str]]:
  parts = {}
  for split in SPLITS:
    starts = np.load(folder / f"{split}.starts.npy")
    parts[split] = Documents(_mapped(folder, split), starts, *about[split])
  return parts, about["notes"]


def documents(task) -> dict[str, Texts]:
  """Return the documents of each split of a corpus; at least `train`.

  Those of a package are distinct, and come in the order of their content hash.

  Raises:
    UserError: for what is missing or broken, most of it only while a split is read.
  """
  if task.package:
    if sources.PACKAGES[task.package] is sources.REVIEWS:
      whole = [text for text, _ in sources.reviews(task.package)]
    else:
      contents = (path.read_bytes().decode() for path in sources.read(task.package))
      whole = [text for text in contents if text.strip()]
    packaged = {splits.key(text): text.encode() for text in reversed(whole)}
    return {"train": Texts((packaged[each] for each in sorted(packaged)), single=False)}
  by_split = {}
  if task.hub:
    lines = task.hub in LINES
    for split, records in hub.records(sources.query(task), task.way_out).items():
      parsed = itertools.starmap(functools.partial(task.row, split), records)
      filled = (text or LINES[task.hub] for text in parsed) if lines else parsed
      by_split[split] = Texts(filled, lines)
    return by_split
  for split, path in sources.given(task).items():
    table = files.is_table(path)
    parts = sources.parsed(task, split) if table else files.blocks(path)
    by_split[split] = Texts(parts, single=not table)
  return by_split


class _Writer:
  """The file that the documents of a split are written to."""

  def __init__(self, folder: Path, split: str):
    self.path = folder / f"{split}.text"
    self.file = open(self.path, "wb")  # noqa: SIM115, closed by who makes it
    self.starts = [0]
    self.blank = self.repeated = 0
    self.keys: set[bytes] = set()  # of documents that were written

  def add(self, document: bytes, *, remember: bool) -> None:
    if not document.strip():
      self.blank += 1
      return
    self.file.write(document)
    self.starts.append(self.file.tell())
    if remember:
      self.keys.add(splits.cased_key(document.decode()))

  def add_single(self, blocks: Iterable[bytes]) -> None:
    self.file.writelines(blocks)
    self.starts.append(self.file.tell())


def _write(folder: Path, task) -> dict:
  """Write the text of each split and where its documents start; return counts and notes."""
  given = documents(task)
  missing = [split for split in ("test", "validation") if split not in given]
  with contextlib.ExitStack() as stack:
    writers = {split: _Writer(folder, split) for split in SPLITS}
    for writer in writers.values():
      stack.enter_context(writer.file)
    for split in given.keys() - {"train"}:
      if given[split].single:
        writers[split].add_single(given[split].parts)
      else:
        for document in given[split].parts:
          writers[split].add(document, remember=True)
    single = _write_train(writers, given["train"], missing)
  if single and missing:
    _cut(writers, missing)
  about: dict = {"notes": _notes(writers, missing, single)}
  for split, writer in writers.items():
    size = writer.path.stat().st_size
    if size < LEAST:
      or_set = f" or set task.{split}" if split in missing else ""
      raise UserError(f"the {split} split has {size} bytes of text; give more text{or_set}")
    starts = np.array(writer.starts, np.int64)
    np.save(folder / f"{split}.starts.npy", starts)
    about[split] = _counted(Documents(_mapped(folder, split), starts, 0, 0))
  return about


def _write_train(writers: dict[str, _Writer], texts: Texts, missing: list[str]) -> bool:
  """Return whether the training text is a single document, which is still to be cut."""
  if texts.single:
    writers["train"].add_single(texts.parts)
    return True
  start = [*itertools.islice(texts.parts, 2), *splits.beginning(texts.parts)]
  key = splits.assigning_key(document.decode() for document in start)
  for document in itertools.chain(start, texts.parts):
    split, text = "train", document.decode()
    if missing and len(start) > 1:
      own = key(text)
      split = next((name for name in missing if splits.draw(own, name) < SHARE), "train")
    remembering = [writer for writer in writers.values() if writer.keys]
    if remembering and split == "train":
      own = splits.cased_key(text)
      for writer in remembering:
        writer.repeated += own in writer.keys
    writers[split].add(document, remember=False)
  for split in missing:
    if len(start) > 1 and len(writers[split].starts) == 1:
      draw = functools.partial(splits.draw, purpose=split)
      _hold_one(writers["train"], writers[split], draw, key)
  return len(start) == 1


def _hold_one(
  train: _Writer, held: _Writer, draw: Callable[[bytes], float], key: Callable[[str], bytes]
) -> None:
  """Move the training document with the least draw to a split that has none, as of few documents
  it happens that none is drawn.
  """
  train.file.flush()
  content = train.path.read_bytes()
  documents = [content[start:end] for start, end in itertools.pairwise(train.starts)]
  keys = [key(document.decode()) for document in documents]
  if len({*keys}) < 2:
    return
  least = min(keys, key=draw)
  train.file.seek(0)
  train.file.truncate()
  train.starts = [0]
  for own, document in zip(keys, documents, strict=True):
    (held if own == least else train).add(document, remember=False)


def _cut(writers: dict[str, _Writer], missing: list[str]) -> None:
  """Move the end of the only document to the splits that are missing; cut no character."""
  train = writers["train"]
  content = np.memmap(train.path, np.uint8, "r")
  size = end = len(content)
  for number, split in enumerate(missing, start=1):
    cut = int(size * (1 - number * SHARE))
    while 0 < cut < size and content[cut] & 0xC0 == 0x80:
      cut -= 1
    with open(writers[split].path, "wb") as file:
      content[cut:end].tofile(file)
    writers[split].starts.append(end - cut)
    end = cut
  del content
  with open(train.path, "r+b") as file:
    file.truncate(end)
  train.starts[-1] = end


def _notes(writers: dict[str, _Writer], missing: list[str], single: bool) -> list[str]:
  notes = []
  if blank := sum(writer.blank for writer in writers.values()):
    notes.append(f"{blank:,} documents are empty or blank and are left out")
  for split in missing:
    if single:
      place = "last" if split == "test" or len(missing) == 1 else "last but one"
      notes.append(f"the {split} split is the {place} twentieth of the training text")
    else:
      count = len(writers[split].starts) - 1
      share = "a twentieth of the documents" if count > 1 else "one document"
      notes.append(f"the {split} split is {share}, held out by content hash")
  for split, writer in writers.items():
    if writer.repeated:
      notes.append(f"{writer.repeated:,} training documents also stand in the {split} split")
  return notes


def _counted(written: Documents) -> tuple[int, int]:
  """Count the characters of UTF-8, and the words and ends of lines."""
  chars = words = 0
  for document in written.texts():
    within = False  # a word that is cut in two
    for piece in vocabulary.pieces(document):
      chars += len(piece.decode())
      words += len(piece.split()) + piece.count(b"\n") - (within and not piece[:1].isspace())
      within = not piece[-1:].isspace()
  return chars, words
