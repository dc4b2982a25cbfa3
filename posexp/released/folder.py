"""A folder in Hugging Face's format: its config, and its tensors, each read when it is asked for.

Weights are read by `safetensors` alone; a pickle is refused and never opened.
"""

from __future__ import annotations

import functools
import hashlib
import re
import textwrap
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy then knows bfloat16)
import numpy as np

from posexp import reading
from posexp.errors import UserError, check_installed
from posexp.released import PREFIX
from posexp.released.mxfp4 import BLOCKS, SCALES, shape_of, unpacked
from posexp.status import doing

SMALL = ["*.json", "merges.txt", "tokenizer.model"]  # what is fetched before any weight is needed
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LARGEST = 64 << 20  # bytes of a JSON file
BLOCK = 32 << 20  # bytes that are read at once, to know a file again
REASON = 200  # characters of the reason of another library for not loading


class Folder:
  """A released checkpoint: `path` on this disk, `config`, and tensors by name."""

  def __init__(self, name: str, path: Path, hub: tuple[str, str] | None = None):
    """Read the config, and the headers of the weights that are on this disk.

    Args:
      name: what errors call the folder.
      path: the folder with `config.json`.
      hub: the repository and the commit that weights are fetched from when they are needed.

    Raises:
      UserError: the config, an index or a file of weights is missing or damaged.
    """
    self.name, self.path, self.hub = name, path, hub
    self.config = self.json("config.json")
    self._open: dict[str, Any] = {}
    self._paths: dict[str, Path] = {}
    self._names: dict[str, frozenset[str]] = {}  # of tensors, by file
    if not hub and self._weighs():
      for file in sorted({*self._files.values()}):
        self._file(file)

  def json(self, file: str) -> dict[str, Any]:
    """Return the content of a JSON file of the folder.

    Raises:
      UserError: the file is missing, or holds no JSON object.
    """
    path = self.path / file
    if not path.is_file():
      raise UserError(f"{self.name}: no {file} in it; give a folder as save_pretrained writes it")
    try:
      if path.stat().st_size > LARGEST:
        raise ValueError(f"more than {LARGEST:,} bytes")
      value = reading.parse(reading.read(path) or b"")
    except ValueError as error:
      why = f"is no JSON ({error})"
    else:
      if isinstance(value, dict):
        return value
      why = "holds no JSON object"
    raise UserError(f"{self.name}: its {file} {why}; copy or download the file again")

  def names(self) -> list[str]:
    """Return the names of all tensors.

    Raises:
      UserError: there are no weights, or only in pickles.
    """
    wholes = {name: name.removesuffix(BLOCKS).removesuffix(SCALES) for name in self._files}
    return sorted({whole if self._packed(whole) else each for each, whole in wholes.items()})

  def _packed(self, name: str) -> bool:
    """Return whether a tensor is in two parts, with four bits a number."""
    return {name + BLOCKS, name + SCALES} <= self._files.keys()

  def shape(self, name: str) -> tuple[int, ...]:
    """Return the shape of a tensor, from the header of its file."""
    if not self._packed(name):
      return tuple(self._slice(name).get_shape())
    parts = [self._slice(name + part) for part in (BLOCKS, SCALES)]
    blocks, scales = (tuple(part.get_shape()) for part in parts)
    fits = blocks[:-1] == scales and {part.get_dtype() for part in parts} == {"U8"}
    return shape_of(blocks) if fits else ()

  def dtype(self, name: str) -> str:
    """Return the type of a tensor's numbers, as NumPy calls it, from the header of its file.

    Raises:
      UserError: it is no floating-point number of 16 bits or more.
    """
    if self._packed(name):
      return "bfloat16"
    stored = self._slice(name).get_dtype()
    if stored not in DTYPES:
      raise UserError(
        f"{self.name}: {name} is stored as {stored}, and posexp reads {', '.join(DTYPES)}; give the"
        " checkpoint before it was quantized"
      )
    return DTYPES[stored]

  def tensor(self, name: str) -> np.ndarray:
    """Return a tensor, read from disk now; bfloat16 is the type of `ml_dtypes`.

    Raises:
      UserError: as `dtype`, or the folder has no such tensor.
    """
    if self._packed(name):
      return unpacked(self._read(name + BLOCKS), self._read(name + SCALES))
    self.dtype(name)
    return self._read(name)

  def _read(self, name: str) -> np.ndarray:
    path = self._paths[self._files[name]]
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:  # what stays open keeps its pages in memory
      return file.get_tensor(name)

  def digests(self) -> list[str]:
    """Return the sha256 of each file of weights."""
    doing(f"reading {self.name}, to know it again")
    return [
      _digest(self._file(file) and self._paths[file]) for file in sorted({*self._files.values()})
    ]

  def _weighs(self) -> bool:
    """Return whether there are weights on this disk; raise UserError where there are only pickles.

    A folder may hold its config alone, which is all that some questions need.
    """
    if any((self.path / file).is_file() for file in (WEIGHTS, INDEX)):
      return True
    if pickles := sorted(file.name for pattern in PICKLES for file in self.path.glob(pattern)):
      raise UserError(
        f"{self.name}: its weights are a pickle ({pickles[0]}), which can run any code and is never"
        f" opened; give them as {WEIGHTS}, which save_pretrained writes"
      )
    return False

  @cached_property
  def _files(self) -> dict[str, str]:
    """The file of each tensor, by its name."""
    if not self.hub and not self._weighs():
      raise UserError(f"{self.name}: no weights in it ({WEIGHTS}); copy or download them, too")
    if not (self.path / INDEX).is_file() if self.hub else (self.path / WEIGHTS).is_file():
      return dict.fromkeys(self._file(WEIGHTS).keys(), WEIGHTS)
    files = self.json(INDEX).get("weight_map")
    valid = isinstance(files, dict) and all(
      isinstance(file, str) and re.fullmatch(r"[\w.-]+\.safetensors", file)
      for file in files.values()
    )
    if not valid:
      raise UserError(f"{self.name}: its {INDEX} gives no file by tensor; download it again")
    return files

  def _slice(self, name: str) -> Any:
    if name not in self._files:
      raise UserError(f"{self.name}: no tensor {name} in it; it has {_some(self.names())}")
    file = self._file(self._files[name])
    if name not in self._names[self._files[name]]:
      raise UserError(
        f"{self.name}: {name} is not in {self._files[name]}, where {INDEX} has it; download both"
        " again"
      )
    return file.get_slice(name)

  def _file(self, file: str) -> Any:
    """Return a file of weights, open, of which the header alone is read."""
    from safetensors import SafetensorError, safe_open

    if file not in self._open:
      path = self.path / file
      if self.hub:
        path = _fetched(self.name, *self.hub, file)
      if not path.is_file():
        raise UserError(
          f"{self.name}: {file} is missing, which {INDEX} names; copy or download it, too"
        )
      try:
        self._open[file], self._paths[file] = safe_open(path, framework="numpy"), path
        self._names[file] = frozenset(self._open[file].keys())
      except (SafetensorError, OSError) as error:
        raise UserError(
          f"{self.name}: {file} is cut off or damaged ({_short(error)}); copy or download it again"
        ) from None
    return self._open[file]


def _digest(path: Path) -> str:
  """Return the sha256 of a file; within a process it is read again only if it was written since."""
  about = path.stat()
  return _read_whole(
    path, about.st_size, (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_ctime_ns)
  )


@functools.lru_cache(1024)
def _read_whole(path: Path, size: int, written: tuple[int, ...]) -> str:
  """Return the sha256 of the sha256 of each block, which are read side by side."""

  def of_block(start: int) -> bytes:
    with path.open("rb") as file:
      file.seek(start)
      return hashlib.sha256(file.read(BLOCK)).digest()

  with ThreadPoolExecutor() as pool:
    return hashlib.sha256(b"".join(pool.map(of_block, range(0, size, BLOCK)))).hexdigest()


def open_folder(name: str) -> Folder:
  """Return a released checkpoint by its folder or its name on the hub, NAME or NAME@REVISION.

  Of the hub, configs and the tokenizer are fetched here, and weights when they are needed.

  Raises:
    UserError: there is none, the hub does not answer, or the folder is damaged.
  """
  name = name.removeprefix(PREFIX)
  shown, path = PREFIX + name, Path(name).expanduser()
  check_installed(shown, "released", "safetensors")
  if path.is_dir():
    return Folder(shown, path)
  repository, _, revision = name.partition("@")
  if path.exists() or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", repository):
    raise UserError(f"{shown}: no such folder, and no name on the hub, which is OWNER/NAME")
  doing(f"asking the Hugging Face hub for {name}")
  path = _fetched(shown, repository, revision or "main", None)
  return Folder(shown, path, hub=(repository, path.name))


def _fetched(shown: str, repository: str, revision: str, file: str | None) -> Path:
  """Return the path of a file of the hub, or of the folder of all small ones, once it is on this
  disk.

  Raises:
    UserError: the hub does not answer, or does not have it.
  """
  import huggingface_hub
  from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
  from huggingface_hub.utils import disable_progress_bars

  disable_progress_bars()
  try:
    if file:
      doing(f"downloading {file} of {repository}")
      return Path(huggingface_hub.hf_hub_download(repository, file, revision=revision))
    return Path(
      huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=SMALL)
    )
  except Exception as error:  # of many libraries: network, login, repository, file
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
      raise UserError(
        f"{shown}: its repository has no {file}, and pickles such as pytorch_model.bin are never"
        " opened; load it with transformers, and give the folder that save_pretrained writes"
      ) from None
    raise UserError(
      f"{shown}: no such folder here, and the Hugging Face hub does not give {file or 'it'}"
      f" ({_short(error)}); check its name, connect once, or give a folder"
    ) from None


def _some(names: list[str]) -> str:
  return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _short(error: Exception) -> str:
  said = str(error).strip() or type(error).__name__
  return textwrap.shorten(said, REASON, placeholder=" …").rstrip(".")


def kind_of(folder: Folder, config: Mapping[str, Any], known: Collection[str], of: str) -> str:
  """Return the `model_type` of a config; `of` names, in messages, what is read.

  Raises:
    UserError: it is none of those that are known.
  """
  kind = config.get("model_type")
  if not isinstance(kind, str) or kind not in known:
    raise UserError(
      f"{folder.name}: its config.json has model_type={kind!r:.80}, and posexp reads {of} of "
      f"{', '.join(known)}"
    )
  return kind
