"""x-transformers at the same work; see `torch_work.py`."""

import importlib.metadata
import sys
from pathlib import Path

import torch
from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper, XTransformer
from x_transformers.autoregressive_wrapper import modify_cached_kv

sys.path.append(str(Path(__file__).parents[1]))

from benchmarking.torch_work import Server, Work

# What posexp calls an encoding, as options of the wrapper and of its layers.
ENCODINGS = {
  "none": ({}, {}),
  "learned": ({"use_abs_pos_emb": True}, {}),
  "sinusoidal": ({"scaled_sinu_pos_emb": True}, {}),
  "t5": ({}, {"rel_pos_bias": True}),
  "alibi": ({}, {"alibi_pos_bias": True}),
  "rope": ({}, {"rotary_pos_emb": True}),
  "xpos": ({}, {"rotary_pos_emb": True, "rotary_xpos": True}),
  "cope": ({}, {"attn_use_cope": True}),
}
UNFUSED = ("t5", "cope")  # which it does not offer with torch's fused attention
CLASSES = 2


class XTransformers(Work):
  """A model of x-transformers and random words."""

  def build(self):
    case = self.case
    self.tokens = self.random(case["batch"], case["length"] + (case["model"] != "encoder"))
    self.source = self.random(case["batch"], case["length"])
    lines = case["lines"]  # a batch is as long as its longest
    self.sources = [self.random(len(part), max(part)) for part in lines] or [self.source]
    self.labels = torch.randint(0, CLASSES, (case["batch"],), device=self.device)
    self.mask = None
    self.batches = [(self.tokens, None)]
    if lines and self.train:
      masks = [self.real(part) for part in lines]
      self.batches = list(zip(self.sources, masks, strict=True))
    return model(case)

  def real(self, lengths: list[int]) -> torch.Tensor:
    """Return which tokens of a batch are not padding."""
    place = torch.arange(max(lengths), device=self.device)
    return place < torch.tensor(lengths, device=self.device)[:, None]

  def step(self) -> None:
    """Return an update step for each batch."""
    for tokens, mask in self.batches:
      self.tokens, self.mask = tokens, mask
      super().step()

  def of_batch(self):
    kind = self.case["model"]
    if kind == "encoder":
      logits = self.model(self.tokens, mask=self.mask)
      return torch.nn.functional.cross_entropy(logits.float(), self.labels)
    return self.model(self.tokens) if kind == "decoder" else self.model(self.source, self.tokens)

  def predict(self) -> None:
    """Return the forward pass, or a search of as many tokens as the source has."""
    case = self.case
    if case["pass"] == "forward":
      self.loss()
      return
    for source in self.sources:
      start = torch.ones((len(source), 1), dtype=torch.long, device=self.device)
      if case["pass"] == "decode":
        self.model.generate(source, start, source.shape[1], cache_kv=True, temperature=0.0)
      else:
        self.beam_search(source, start, case["beam"])

  def beam_search(self, source: torch.Tensor, start: torch.Tensor, beam: int) -> None:
    """Search on the library's cache; the library's own search does not take a source."""
    net, words = self.model.decoder.net, self.case["vocabulary"]
    rows, length = source.shape
    context = self.model.encoder(source, return_embeddings=True).repeat_interleave(beam, 0)
    tokens = start.repeat_interleave(beam, 0)
    score = torch.full((rows, beam), -torch.inf, device=self.device)
    score[:, 0] = 0
    first = torch.arange(rows, device=self.device)[:, None] * beam
    cache = None
    for _ in range(length):
      logits, cache = net(tokens, context=context, cache=cache, return_intermediates=True)
      gain = logits[:, -1].float().log_softmax(-1).view(rows, beam, words)
      score, best = (score[:, :, None] + gain).flatten(1).topk(beam)
      parent = (first + best // words).flatten()
      tokens = torch.cat([tokens[parent], (best % words).view(-1, 1)], 1)
      modify_cached_kv(cache, lambda x, parent=parent: x[parent])


def model(case: dict) -> torch.nn.Module:
  """Return the model of the same widths, pre-norm and relu as posexp's; it starts as its authors
  chose.
  """
  wrapper, encoding = ENCODINGS[case["encoding"]]
  wrapper = {"use_abs_pos_emb": False} | wrapper
  if wrapper.get("scaled_sinu_pos_emb"):
    wrapper["use_abs_pos_emb"] = True
  width = case["d_model"] // case["heads"]
  layers = {
    "depth": case["layers"],
    "heads": case["heads"],
    "attn_dim_head": width,
    "attn_flash": case["fused"],
    "attn_dropout": case["dropout"],
    "ff_mult": case["d_ff"] / case["d_model"],
    "ff_custom_activation": torch.nn.ReLU(),
    "ff_dropout": case["dropout"],
    "verbose": False,
    **encoding,
  }
  if encoding.get("rotary_pos_emb"):
    layers["rotary_emb_dim"] = width  # all channels turn, as posexp's do
  words = {"num_tokens": case["vocabulary"], "max_seq_len": case["length"] + 1}
  if case["model"] == "translator":
    both = {**words, **wrapper, **layers}
    sides = {f"{side}_{key}": value for side in ("enc", "dec") for key, value in both.items()}
    return XTransformer(dim=case["d_model"], **sides)
  if case["model"] == "decoder":
    return AutoregressiveWrapper(
      TransformerWrapper(attn_layers=Decoder(dim=case["d_model"], **layers), **words, **wrapper)
    )
  return TransformerWrapper(
    attn_layers=Encoder(dim=case["d_model"], **layers),
    logits_dim=CLASSES,
    average_pool_embed=True,
    **words,
    **wrapper,
  )


if __name__ == "__main__":
  Server(
    XTransformers,
    {name: name not in UNFUSED for name in ENCODINGS},
    f"x-transformers {importlib.metadata.version('x-transformers')}",
    sys.argv[1:],
  ).serve()
