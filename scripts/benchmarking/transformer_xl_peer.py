"""The authors' Transformer-XL at the same work: `transformer_xl_peer.py THREADS DEVICE FOLDER`.

FOLDER is `pytorch` of https://github.com/kimiyoung/transformer-xl. See `torch_work.py`.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from recurrence.authors import model_class

from benchmarking.torch_work import Server, Work


class XL(Work):
  """Segments one after the other, with a memory that goes from each to the next."""

  def build(self):
    case = self.case
    model = model_class(Path(sys.argv[3]))(
      case["vocabulary"],
      case["layers"],
      case["heads"],
      case["d_model"],
      case["d_model"] // case["heads"],
      case["d_ff"],
      case["dropout"],
      case["dropout"],
      tie_weight=False,
      pre_lnorm=True,
      tgt_len=case["length"],
      ext_len=0,
      mem_len=case["memory"],
    )
    shape = (case["length"], case["batch"])
    self.tokens, self.labels = self.random(*shape), self.random(*shape)
    for bias in (model.r_w_bias, model.r_r_bias):  # which the model itself leaves as they are
      torch.nn.init.normal_(bias, std=0.02)
    slots = (case["memory"], case["batch"], case["d_model"])
    layers = range(case["layers"] + 1 if case["memory"] else 0)
    self.memory = [torch.zeros(slots, device=self.device) for _ in layers]
    return model

  def of_batch(self):
    loss, *self.memory = self.model(self.tokens, self.labels, *self.memory)
    return loss.float().mean()


if __name__ == "__main__":
  Server(XL, {"transformer_xl": False}, "Dai et al.'s code", sys.argv[1:]).serve()
