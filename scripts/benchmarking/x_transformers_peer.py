"""x-transformers at the same work, in a process of its own; JSON lines in, JSON lines out.

It is run by another Python, which has torch and x_transformers and need not have posexp.
"""

import importlib.metadata
import json
import sys
import time

import torch
from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper, XTransformer
from x_transformers.autoregressive_wrapper import modify_cached_kv

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


class Work:
  """A model, its optimizer and a batch; `__call__` does what is measured once."""

  def __init__(self, case: dict, device: str):
    torch.manual_seed(0)
    self.case, self.device = case, device
    self.model = model(case).to(device)
    self.train = case["pass"] == "step"
    self.model.train(self.train)
    shape = (case["batch"], case["length"] + (case["model"] != "encoder"))
    draw = [torch.randint(3, case["vocabulary"], shape, device=device) for _ in range(2)]
    self.tokens, self.source = draw[0], draw[1][:, : case["length"]]
    self.labels = torch.randint(0, CLASSES, shape[:1], device=device)
    self.start = torch.ones((case["batch"], 1), dtype=torch.long, device=device)
    self.loss = torch.compile(self.of_batch, dynamic=False) if case["compile"] else self.of_batch
    self.optimizer = torch.optim.AdamW(
      self.model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1, fused=True
    )

  def of_batch(self) -> torch.Tensor:
    """The loss."""
    kind = self.case["model"]
    if kind == "encoder":
      return torch.nn.functional.cross_entropy(self.model(self.tokens).float(), self.labels)
    return self.model(self.tokens) if kind == "decoder" else self.model(self.source, self.tokens)

  def __call__(self) -> None:
    half = self.case["dtype"] == "bfloat16"
    with torch.autocast(self.device, dtype=torch.bfloat16, enabled=half):
      if self.train:
        self.step()
      else:
        with torch.no_grad():
          self.predict()

  def step(self) -> None:
    """The update step, gradients clipped as posexp's are."""
    self.loss().backward()
    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    self.optimizer.step()
    self.optimizer.zero_grad(set_to_none=True)

  def predict(self) -> None:
    """The forward pass, or a search of as many tokens as the source has."""
    case = self.case
    if case["pass"] == "forward":
      self.loss()
    elif case["pass"] == "decode":
      self.model.generate(self.source, self.start, case["length"], cache_kv=True, temperature=0.0)
    else:
      self.beam_search(case["beam"])

  def beam_search(self, beam: int) -> None:
    """The library's own does not take a source; this one is on its cache."""
    net, words = self.model.decoder.net, self.case["vocabulary"]
    rows = self.case["batch"]
    context = self.model.encoder(self.source, return_embeddings=True).repeat_interleave(beam, 0)
    tokens = self.start.repeat_interleave(beam, 0)
    score = torch.full((rows, beam), -torch.inf, device=self.device)
    score[:, 0] = 0
    first = torch.arange(rows, device=self.device)[:, None] * beam
    cache = None
    for _ in range(self.case["length"]):
      logits, cache = net(tokens, context=context, cache=cache, return_intermediates=True)
      gain = logits[:, -1].float().log_softmax(-1).view(rows, beam, words)
      score, best = (score[:, :, None] + gain).flatten(1).topk(beam)
      parent = (first + best // words).flatten()
      tokens = torch.cat([tokens[parent], (best % words).view(-1, 1)], 1)
      modify_cached_kv(cache, lambda x, parent=parent: x[parent])


def model(case: dict) -> torch.nn.Module:
  """The model of the same widths, pre-norm and relu as posexp's; it starts as its authors chose."""
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


class Peer:
  """What answers requests."""

  def __init__(self, threads: int, device: str):
    torch.set_num_threads(threads)
    torch._dynamo.config.recompile_limit = 64  # models that share code, each compiled for itself
    self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    self.works: list[Work] = []

  def about(self) -> dict:
    names = ("x-transformers", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    kind = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
    return {
      "about": f"{versions}, {kind}, {torch.get_num_threads()} threads",
      "encodings": {name: name not in UNFUSED for name in ENCODINGS},
    }

  def make(self, case: dict) -> dict:
    """Builds a model and does the work twice, by when all is compiled."""
    began = time.perf_counter()
    work = Work(case, self.device)
    work()
    self.wait()
    first = time.perf_counter() - began
    work()
    self.works.append(work)
    count = sum(each.numel() for each in work.model.parameters())
    return {"work": len(self.works) - 1, "compile_s": first, "parameters": count}

  def time(self, work: int, calls: int) -> dict:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
      self.works[work]()
    self.wait()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

  def forget(self) -> dict:
    self.works.clear()
    torch.compiler.reset()
    return {}

  def wait(self) -> None:
    if self.device == "cuda":
      torch.cuda.synchronize()


def main() -> None:
  """Answers until the requests end."""
  answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
  peer = Peer(int(sys.argv[1]), sys.argv[2])
  for line in sys.stdin:
    request = json.loads(line)
    try:
      answer = getattr(peer, request.pop("do"))(**request)
    except Exception as error:
      answer = {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
  main()
