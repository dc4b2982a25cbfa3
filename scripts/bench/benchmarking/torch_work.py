"""Work in PyTorch, done when it is asked for: JSON lines in, JSON lines out.

The scripts of peers share it. They are run by another Python, which need not have posexp.
"""

import importlib.metadata
import json
import sys
import time

import torch


class Work:
  """A model, its optimizer and what it reads; `__call__` does what is measured once."""

  def __init__(self, case: dict, device: str):
    torch.manual_seed(0)
    self.case, self.device = case, device
    self.train = case["pass"] == "step"
    self.model = self.build().to(device)
    self.model.train(self.train)
    self.loss = torch.compile(self.of_batch, dynamic=False) if case["compile"] else self.of_batch
    self.optimizer = torch.optim.AdamW(
      self.model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1, fused=True
    )

  def build(self) -> torch.nn.Module:
    """Return the model; it starts as its authors chose."""
    raise NotImplementedError

  def of_batch(self) -> torch.Tensor:
    """Return the loss."""
    raise NotImplementedError

  def __call__(self) -> None:
    half = self.case["dtype"] == "bfloat16"
    with torch.autocast(self.device, dtype=torch.bfloat16, enabled=half):
      if self.train:
        self.step()
      else:
        with torch.no_grad():
          self.predict()

  def step(self) -> None:
    """Return the update step, gradients clipped as posexp's are."""
    self.loss().backward()
    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    self.optimizer.step()
    self.optimizer.zero_grad(set_to_none=True)

  def predict(self) -> None:
    """Return what is measured without gradients."""
    self.loss()

  def random(self, *shape: int) -> torch.Tensor:
    """Words of the vocabulary without its first three."""
    return torch.randint(3, self.case["vocabulary"], shape, device=self.device)


class Server:
  """What answers requests. `encodings` says which it has, and which with fused attention."""

  def __init__(self, work: type[Work], encodings: dict[str, bool], about: str, argv: list[str]):
    self.work, self.encodings, self.said = work, encodings, about
    torch.set_num_threads(int(argv[0]))
    torch._dynamo.config.recompile_limit = 64  # models that share code, each compiled for itself
    self.device = "cuda" if argv[1] != "cpu" and torch.cuda.is_available() else "cpu"
    self.works: list[Work] = []

  def about(self) -> dict:
    kind = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
    versions = f"{self.said}, torch {importlib.metadata.version('torch')}"
    return {
      "about": f"{versions}, {kind}, {torch.get_num_threads()} threads",
      "encodings": self.encodings,
    }

  def make(self, case: dict) -> dict:
    """Build a model and do the work twice, by when all is compiled."""
    began = time.perf_counter()
    work = self.work(case, self.device)
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

  def serve(self) -> None:
    """Answer until the requests end."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    for line in sys.stdin:
      request = json.loads(line)
      try:
        answer = getattr(self, request.pop("do"))(**request)
      except Exception as error:
        answer = {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
      print(json.dumps(answer), file=answers, flush=True)
