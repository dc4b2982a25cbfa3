"""scripts/account.py: every kernel of a training step belongs to one part."""

import account
import benchmark
import pytest
from benchmarking import cases, programs

from posexp.models import cross_entropy

SIZE = ["--d-model", "16", "--heads", "2", "--layers", "1", "--vocabulary", "20", "--batch", "2"]


def case_of(*options: str) -> cases.Case:
  argv = [*SIZE, "--encodings", "none", "--lengths", "8", "--dropout", "0.1", *options]
  [[case]], _ = cases.plan(benchmark.arguments(argv))
  return case


@pytest.fixture(scope="module")
def known():
  _, compiled, _ = programs.train(case_of())
  return account.kernels(compiled)


def test_kernels_are_counted_to_the_part_whose_code_they_come_from(known):
  assert {part for part, *_ in known.values()} >= {
    "products of linear maps",
    "products of attention",
    "optimizer",
    "dropout",
    "norms",
    "words",
  }


def test_products_of_linear_maps_have_the_work_of_their_matrices(known):
  matrices = 4 * 16 * 16 + 2 * 16 * 64  # of attention and of the feed-forward network
  head = 16 * 2
  flops = sum(work for part, work, _ in known.values() if part == "products of linear maps")
  tokens, rows = 2 * 8, 2
  # XLA may also sum the gradients of biases by products.
  assert flops == pytest.approx(3 * 2 * (tokens * matrices + rows * head), rel=0.01)


@pytest.mark.slow
def test_a_loop_counts_as_the_kernels_of_all_its_turns(monkeypatch):
  monkeypatch.setattr(cross_entropy, "AT_ONCE", 2 * 2 * 20)  # four turns of two tokens
  case = case_of("--model", "decoder")
  parts, _ = account.account(case)
  product = 2 * 2 * 8 * 16 * 20
  assert parts["products of output words"].flops == pytest.approx(3 * product, rel=0.01)
  assert not any(name.startswith("while") for name in account.kernels(programs.train(case)[1]))


def test_the_calls_behind_a_kernel_are_read_from_the_programs_text():
  text = """HloModule jit_f

FileNames
1 "models/block.py"
2 "lib/optax/transforms/_clipping.py"

FunctionNames
1 "MultiHeadAttention.__call__"
2 "clip"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=1 end_line=1 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%computation (x: f32[]) -> f32[] {
"""
  attention, clip = (
    ("models/block.py", "MultiHeadAttention.__call__"),
    ("lib/optax/transforms/_clipping.py", "clip"),
  )
  assert account.frames(text) == {"1": (attention,), "2": (clip, attention)}
  assert account.of_optimizer((clip,))
  assert not account.of_optimizer((attention,))
