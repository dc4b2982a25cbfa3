"""What compiled programs say of themselves is read right, and programs are compiled for GPUs."""

import csv

import benchmark
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarking import ahead, chips
from benchmarking.hlo import Kernel, Program
from jax.experimental import topologies
from jax.sharding import Mesh

from posexp.errors import UserError

TINY = ["--d-model", "32", "--heads", "2", "--layers", "1", "--vocabulary", "20", "--lengths", "16"]
TEXT = r"""HloModule jit_f, is_scheduled=true

%part (parameter_0: f32[9,4,8], parameter_1: s32[], parameter_2: f32[8,2]) -> f32[4,2] {
  %parameter_0 = f32[9,4,8]{2,1,0} parameter(0)
  %parameter_1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,4,8]{2,1,0} dynamic-slice(%parameter_0, %parameter_1, %zero, /*index=3*/%zero), dynamic_slice_sizes={1,4,8}
  %bitcast = f32[4,8]{1,0} bitcast(%slice)
  %parameter_2 = f32[8,2]{1,0} parameter(2)
  ROOT %dot = f32[4,2]{1,0} dot(%bitcast, %parameter_2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (turn: (s32[], f32[9,4,8], f32[8,2])) -> (s32[], f32[9,4,8], f32[8,2]) {
  %turn = (s32[], f32[9,4,8]{2,1,0}, f32[8,2]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%turn), index=0
  %rows = f32[9,4,8]{2,1,0} get-tuple-element(%turn), index=1
  %matrix = f32[8,2]{1,0} get-tuple-element(%turn), index=2
  %fused = f32[4,2]{1,0} fusion(%rows, %i, %matrix), kind=kCustom, calls=%part, backend_config={"kind":"__triton_gemm"}
  ROOT %next = (s32[], f32[9,4,8]{2,1,0}, f32[8,2]{1,0}) tuple(%i, %rows, %matrix)
}

%more (turn.1: (s32[], f32[9,4,8], f32[8,2])) -> pred[] {
  %turn.1 = (s32[], f32[9,4,8]{2,1,0}, f32[8,2]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (q: bf16[2,16,4,8], rows.1: f32[9,4,8], matrix.1: f32[8,2]) -> f32[] {
  %q = bf16[2,16,4,8]{3,2,1,0} parameter(0)
  %rows.1 = f32[9,4,8]{2,1,0} parameter(1)
  %matrix.1 = f32[8,2]{1,0} parameter(2)
  %first = s32[2,1]{1,0} constant({ {0}, {0} })
  %start = (s32[], f32[9,4,8]{2,1,0}, f32[8,2]{1,0}) tuple(%first, %rows.1, %matrix.1)
  %loop = (s32[], f32[9,4,8]{2,1,0}, f32[8,2]{1,0}) while(%start), condition=%more, body=%body, backend_config={"known_trip_count":{"n":"9"},"known_init_step":{"init":"0"}}
  %cudnn = (bf16[2,4,16,8]{3,1,2,0}, f32[2,4,16]{2,1,0}, u8[0]{0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"mask_type": "PADDING_CAUSAL"}
  %own = (bf16[2,16,4,8]{3,2,1,0}, bf16[2,16,4,8]{3,2,1,0}) custom-call(%first, %q, %q, %q), custom_call_target="__gpu$xla.gpu.triton", backend_config={grid_x = 1 : i32, ir = "ML\EFR{(", name = "key_kernel", num_stages = 2 : i32}
  %begun = f32[100]{0} all-reduce-start(%matrix.1), to_apply=%sum
  %done = f32[100]{0} all-reduce-done(%begun)
  ROOT %blas = (f32[4,2]{1,0}, s8[64]{0}) custom-call(%rows.1, %matrix.1), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"]}}}
}
"""  # noqa: E501


def test_kernels_are_read_with_what_they_compute_and_move():
  pair = 2 * 2 * 4 * 16 * 16 * 8  # FLOPs of one product of all queries and keys
  array, slice_ = 2 * 16 * 4 * 8 * 2, 4 * 8 * 4
  assert Program(TEXT).kernels() == [
    Kernel("product", "Triton", 9, 9 * 2 * 4 * 8 * 2, "f32", 9 * (slice_ + 4 + 64 + 32)),
    Kernel("attention", "cuDNN forward", 1, 2 * pair / 2, "bf16", 4 * array + 4 * 128),
    Kernel("attention", "key_kernel", 1, 4 * pair, "bf16", 5 * array + 8),
    Kernel("collective", "all-reduce", 1, 0, "", 400),
    Kernel("product", "cuBLAS", 1, 2 * 4 * 2 * 8, "f32", 1152 + 64 + 32 + 64),
  ]


def test_a_kernel_takes_the_longer_of_its_flops_and_its_bytes():
  chip = chips.Chip(flops=100, memory=0, bandwidth=10, link=2)
  for kernel, expected in (
    (Kernel("product", "Triton", 1, 500, "bf16", 10), 5),
    (Kernel("product", "Triton", 1, 500, "f32", 10), 10),
    (Kernel("other", "fusion", 1, 0, "", 70), 7),
    (Kernel("collective", "all-reduce", 1, 0, "", 8), 6),
    (Kernel("collective", "all-gather", 1, 0, "", 8), 3),
  ):
    assert ahead.seconds(kernel, chip, 4) == expected


def test_products_in_a_loop_count_as_often_as_it_turns():
  def looped(x, matrices):
    return jax.lax.scan(lambda x, matrix: (jnp.tanh(x @ matrix), None), x, matrices)[0]

  shapes = jax.ShapeDtypeStruct((3, 5), jnp.float32), jax.ShapeDtypeStruct((7, 5, 5), jnp.float32)
  text = jax.jit(looped).lower(*shapes).compile().as_text()
  assert sum(each.flops for each in Program(text).kernels()) == 7 * 2 * 3 * 5 * 5


@pytest.fixture(scope="module", autouse=True)
def cached():
  """The benchmark turns the cache of compiled programs off in its process."""
  yield
  jax.config.update("jax_enable_compilation_cache", True)


def run(out, *argv):
  return benchmark.benchmark(benchmark.arguments([*TINY, "--out", str(out), *argv]), "typed so")


@pytest.mark.slow
def test_the_table_has_a_row_for_each_encoding_and_form(tmp_path, monkeypatch):
  here = Mesh(np.array(jax.devices()[:1]), ("data",))
  monkeypatch.setattr(ahead, "mesh_of", lambda count, name: here)
  argv = ["--ahead", "h200", "--encodings", "rope", "--batch", "4"]
  found = run(tmp_path, *argv, "--attention", "reference,fused")
  assert [each["label"] for each in found] == ["none reference", "rope reference"]
  for each in found:
    assert each["gflops_compiled"] == pytest.approx(each["gflops"], rel=0.02)
    assert each["bound_ms"] > 1e3 * each["gb_moved"] / 4800 / 1.001
    assert 0 < each["bound_mfu"] < 1
    assert each["attention_kernels"] == "none"
    assert (each["bound_ratio"] == 1) == (each["encoding"] == "none")
  with (tmp_path / "ahead.csv").open(encoding="utf-8") as file:
    kept = list(csv.DictReader(file))
  assert [float(each["bound_ms"]) for each in kept] == [each["bound_ms"] for each in found]
  text = (tmp_path / "ahead.md").read_text(encoding="utf-8")
  assert "Nothing below was run or timed" in text
  assert "× none reference" in text
  assert "- rope fused: attention=fused needs a GPU, and here is a cpu alone" in text


def test_what_cannot_be_compiled_has_a_note_and_no_row(tmp_path, monkeypatch):
  here = Mesh(np.array(jax.devices()[:1]), ("data",))
  monkeypatch.setattr(ahead, "mesh_of", lambda count, name: here)
  argv = ["--ahead", "h200", "--encodings", "cope,rpr", "--attention", "fused"]
  assert run(tmp_path, *argv) == []
  text = (tmp_path / "ahead.md").read_text(encoding="utf-8")
  for name in ("cope", "rpr"):
    assert f"- {name} fused: attention=fused needs an encoding that its kernels know" in text


@pytest.mark.parametrize(
  ("argv", "said"),
  [
    (["--ahead", "h10"], "did you mean h100?"),
    (["--ahead", "8xh100", "--batch", "12"], "--batch 12 does not divide among 8 GPUs"),
    (["--ahead", "h100", "--passes", "attention"], "--ahead compiles the pass step alone"),
    (
      ["--ahead", "h100"],
      r"compiler for CUDA, which is not installed: pip install -e '\.\[cuda\]'",
    ),
  ],
)
def test_mistakes_are_one_sentence(tmp_path, monkeypatch, argv, said):
  def missing(**_):
    raise NotImplementedError("topology not implemented for cuda")

  monkeypatch.setattr(topologies, "get_topology_desc", missing)
  with pytest.raises(UserError, match=said):
    run(tmp_path, *argv)


@pytest.fixture(scope="module")
def compiler():
  """That for CUDA, where it is installed."""
  try:
    ahead.mesh_of(1, "h100")
  except UserError as error:
    pytest.skip(str(error))


@pytest.mark.parametrize("model", ["encoder", "decoder", "translator"])
@pytest.mark.parametrize("name", ["none", "t5", "fused_rpr"])
def test_fused_attention_compiles_for_a_gpu(compiler, tmp_path, name, model):
  argv = ["--encodings", name, "--model", model, "--dtype", "bfloat16", "--lengths", "31"]
  *_, found = run(tmp_path, *argv, "--ahead", "h100", "--attention", "fused", "--batch", "2")
  assert found["encoding"] == name
  own = "causal_" * (model == "decoder") + "forward_kernel"
  assert (own if name == "fused_rpr" else "cuDNN backward") in found["attention_kernels"]


def test_several_gpus_exchange_sums_alone(compiler, tmp_path):
  argv = ["--encodings", "fused_rpr", "--dtype", "bfloat16", "--attention", "fused,reference"]
  found = run(tmp_path, *argv, "--ahead", "8xh100", "--batch", "16")
  assert len(found) == 4
  for each in found:
    assert each["collectives"].split()[1:3] == ["all-reduce", "of"]
