"""The house: which room uses which, and how large anything in it may get."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "posexp"
FILES = sorted(PACKAGE.rglob("*.py"))
# Slow to import, or optional: these may be imported where they are used.
DEFERRED = {
  "babel", "datasets", "flax", "huggingface_hub", "hydra", "hydra_plugins", "jax", "matplotlib",
  "num2words", "numpy", "orbax", "pandas", "pyarrow", "sacrebleu", "scipy", "safetensors",
  "sklearn", "tabulate", "tensorboardX", "threadpoolctl", "tokenizers", "vl_convert", "wandb",
}  # fmt: skip


def test_a_room_uses_only_the_rooms_below_it():
  code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr


def imports():
  """By its name, which modules of posexp a module imports, be it for types or in a function."""
  names = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in FILES
  }
  found = {}
  for name, file in names.items():
    of = found[name] = set()
    for node in ast.walk(parsed()[str(file.relative_to(ROOT))][1]):
      if isinstance(node, ast.Import):
        of |= {each.name for each in node.names}
      elif isinstance(node, ast.ImportFrom):
        of |= {f"{node.module}.{each.name}" for each in node.names} | {node.module}
    of &= names.keys() - {name}
  return found


def circle(graph):
  """Some names of a graph that lead to each other; none where each leads on."""
  left = dict(graph)
  while ends := [name for name, after in left.items() if not after & left.keys()]:
    for name in ends:
      del left[name]
  return left


def test_no_modules_import_each_other_even_for_types():
  found = imports()
  # A package imports its modules, and these their package, where it is only a place.
  assert not circle({name: after - {name.rpartition(".")[0]} for name, after in found.items()})
  assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}).keys() == {"a", "b", "c"}


def test_the_root_holds_little_more_than_commands():
  assert len(list(PACKAGE.glob("*.py"))) <= 25


def test_every_room_has_tests_of_its_own():
  rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
  tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
  assert rooms | {"commands", "whole"} == tested


def test_no_module_is_named_like_one_of_the_standard_library():
  own = {file.stem for file in FILES} | {file.parent.name for file in FILES}
  # `python -m posexp.inspect` is a command, and encodings are what all is about.
  assert own & sys.stdlib_module_names - {"inspect", "encodings"} <= {"__init__"}


@functools.cache
def parsed():
  """What is in each file, by its name."""
  texts = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in FILES}
  return {name: (text, ast.parse(text)) for name, text in texts.items()}


def functions(tree):
  return [
    node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
  ]


def test_files_and_functions_are_short():
  for name, (text, tree) in parsed().items():
    assert len(text.splitlines()) <= 400, name
    for node in functions(tree):
      length = node.end_lineno - node.lineno + 1
      assert length <= 60, f"{name}: {node.name} has {length} lines"


def test_no_import_hides_in_a_function_without_a_reason():
  """Importing a module of posexp there is a way to be late with a dependency that it has."""
  for file, (_, tree) in parsed().items():
    for node in (node for function in functions(tree) for node in ast.walk(function)):
      names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
      if isinstance(node, ast.ImportFrom):
        names = [node.module]
      for name in names:
        assert name.partition(".")[0] in DEFERRED | {"posexp"}, f"{file}, {node.lineno}: {name}"
