"""The authors' Transformer-XL in PyTorch: random weights, and its losses, in a process of its own.

It is run by another Python, which has torch and numpy and need not have posexp. Nothing of the
authors' is changed, but two names that they use have another meaning in PyTorch by now: masks are
bool and not bytes, and builds without CUDA have no version of it.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

VOCAB, D, HEADS, D_FF, LAYERS = 13, 8, 2, 16, 2  # of the model
B, T, SEGMENTS = 2, 4, 5  # of the text
SPREAD = 0.4  # of the weights, so that attention is far from uniform


def model_class(source):
  """`MemTransformerLM` of the folder `pytorch` of the authors' repository."""
  torch.Tensor.byte = torch.Tensor.bool
  torch.version.cuda = torch.version.cuda or "0.0"
  sys.path[:0] = [str(source), str(source / "utils")]
  from mem_transformer import MemTransformerLM

  return MemTransformerLM


def built(cls, case):
  """Return the model of a case, with a plain softmax, as the authors have it for characters."""
  model = cls(
    VOCAB,
    LAYERS,
    HEADS,
    D,
    D // HEADS,
    D_FF,
    dropout=0.0,
    dropatt=0.0,
    tgt_len=T,
    ext_len=0,
    mem_len=case["memory"],
    same_length=case["same_length"],
    clamp_len=case["clamp"] or -1,
    pre_lnorm=case["norm"] == "pre",
  )
  return model.eval()


def weights(cls, case, draw):
  """Return a number for every weight by name, short in binary; what is tied occurs once."""
  found = {}
  for name, tensor in built(cls, case).named_parameters():
    center = 1.0 if name.endswith("layer_norm.weight") else 0.0
    drawn = center + SPREAD * draw.standard_normal(tuple(tensor.shape))
    found[name] = drawn.astype(np.float16)
  return found


def loaded(cls, case, weights, biases):
  """Return the model of a case with these weights; each layer has its own u and v where they are
  untied.

  Only the authors' TensorFlow code can untie them, by `untie_r`.
  """
  model = built(cls, case)
  tensors = {name: torch.tensor(value.astype(np.float32)) for name, value in weights.items()}
  model.load_state_dict(tensors, strict=False)  # tied and computed ones are not among them
  for i, layer in enumerate(model.layers if case["untied"] else ()):
    u, v = (torch.tensor(each[i].astype(np.float32)) for each in biases)
    layer.register_forward_pre_hook(lambda _, given, u=u, v=v: (*given[:2], u, v))
  return model


def losses(model, text):
  """Return the loss in nats of every token of text [B,L+1] but the first, [B,L]; and the last
  segment's.

  The second has a gradient.
  """
  found, memory = [], ()
  for start in range(0, text.shape[1] - 1, T):
    read, wanted = (torch.tensor(text[:, start + i : start + i + T].T).long() for i in (0, 1))
    loss, *memory = model(read.contiguous(), wanted.contiguous(), *memory)
    found.append(loss.detach().numpy().T)
  return np.concatenate(found, axis=1), loss


def main():
  """Answer cases, JSON on standard input, with a file: `authors.py FOLDER FILE.npz`."""
  source, out = map(Path, sys.argv[1:])
  cases = json.load(sys.stdin)
  cls = model_class(source)
  draw = np.random.default_rng(0)
  given = weights(cls, cases[0], draw)
  biases = (SPREAD * draw.standard_normal((2, LAYERS, HEADS, D // HEADS))).astype(np.float16)
  text = draw.integers(0, VOCAB, (B, T * SEGMENTS + 1), dtype=np.uint8)
  found = []
  for case in cases:
    model = loaded(cls, case, given, biases)
    loss, last = losses(model, text)
    found.append(loss)
  last.mean().backward()
  gradients = {name: each.grad.numpy() for name, each in model.named_parameters() if name in given}
  code = hashlib.sha256((source / "mem_transformer.py").read_bytes()).hexdigest()
  about = {"torch": torch.__version__, "mem_transformer.py": code, "cases": cases}
  np.savez_compressed(
    out,
    about=json.dumps(about),
    segment=T,
    heads=HEADS,
    text=text,
    losses=np.stack(found),
    biases=biases,
    **{f"weight/{name}": value for name, value in given.items()},
    **{f"gradient/{name}": value for name, value in gradients.items()},
  )


if __name__ == "__main__":
  main()
