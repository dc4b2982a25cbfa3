"""The check of the kernels that only a GPU can run, where a CPU stands in for it."""

import gpu
import pytest

from posexp.encodings import ENCODINGS
from posexp.kernels import cudnn
from posexp.kernels.target import Target
from posexp.models import attention
from posexp.models.transformer import Size


def test_without_a_gpu_it_says_so(capsys):
  gpu.main()
  assert capsys.readouterr().out.startswith("JAX finds no GPU here, so no kernel was checked")


def test_it_fails_if_a_kernel_differs_and_says_where(monkeypatch, capsys):
  """A CPU computes what cuDNN is given; of causal attention it is made to give a wrong output."""
  attend = cudnn.attend

  def broken(q, k, v, bias, visible, causal):
    return attend(q, k, v, bias, visible, causal) * (1.05 if causal else 1.0)

  monkeypatch.setattr(cudnn, "attend", broken)
  for module in (gpu, attention):
    monkeypatch.setattr(module, "target", lambda: Target("gpu"))
  monkeypatch.setattr(gpu, "ENCODINGS", {name: ENCODINGS[name] for name in ("none", "cope")})
  monkeypatch.setattr(gpu, "LENGTHS", (8,))
  size = Size(d_model=16, num_heads=2, d_ff=8, num_layers=1, dropout=0.0, attention="reference")
  monkeypatch.setattr(gpu, "SIZE", size)
  with pytest.raises(SystemExit) as end:
    gpu.main()
  assert end.value.code == 1
  table, _, without = capsys.readouterr().out.partition("without a kernel:")
  ends = [(*line.split()[:2], line.split()[-1]) for line in table.splitlines()[2:] if line]
  assert ends == [("none", "encoder", "yes"), ("none", "decoder", "NO")]
  assert "cope, decoder: attention=fused needs an encoding that its kernels know" in without
