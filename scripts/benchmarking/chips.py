"""Accelerators that are not at hand, as their makers describe them."""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
  """What its maker says of an accelerator, dense, in bfloat16."""

  flops: float  # a second
  memory: float  # bytes
  bandwidth: float  # bytes a second
  link: float  # bytes a second to the others, one way


H100 = Chip(989e12, 80e9, 3.35e12, 450e9)  # NVIDIA's data sheets, the SXM form
H200 = Chip(989e12, 141e9, 4.8e12, 450e9)

GPUS = {"h100": ("NVIDIA H100 80GB HBM3", H100), "h200": ("NVIDIA H200", H200)}
# What XLA asks of a GPU before it compiles for it: the properties that CUDA reports of either.
HOPPER = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 minor: 0 }}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  l2_cache_size: 52428800
  memory_bandwidth: {bandwidth:.0f}
  device_memory_size: {memory:.0f}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{name}"
"""


def described(gpu: str) -> str:
  """One of `GPUS`, in the words in which XLA wants it."""
  name, chip = GPUS[gpu]
  return HOPPER.format(name=name, **chip._asdict())


def peak(device: str) -> float | None:
  """FLOPs a second in bfloat16 of a device of `GPUS`, by its name."""
  return next((chip.flops for name, chip in GPUS.values() if name == device), None)
