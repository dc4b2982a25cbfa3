"""The optimizer, its schedule, and the options of training."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import nnx

from posexp.config import plugins
from posexp.config.checks import Count, Positive, Share, Whole, at_least, brief, check, show
from posexp.encodings.base import Matrix

# Optimizers of optax and optax.contrib that need only gradients, parameters and a learning rate.
NAMES = (
  "adabelief", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "ademamix",
  "adopt", "amsgrad", "lamb", "lars", "lion", "muon", "nadam", "nadamw", "radam", "rmsprop", "sgd",
  "signum", "yogi",
)  # fmt: skip
OURS = {"adamw": {"b2": 0.98}}  # defaults that are not optax's
MASKS = ("mask", "weight_decay_mask")  # names of the argument for the weights that decay
NO_CHOICE = "which does not let one choose the weights that decay"
RATE = "weight_decay_rate"  # Adafactor's own, an option of it
AXES = "muon_weight_dimension_numbers"  # of that for the axes of matrices


@dataclasses.dataclass(frozen=True)
class Training:
  """The options of training, the same for every encoding."""

  batch_size: Count = 32
  epochs: Count | None = 6  # None: by least_epochs and least_steps
  least_epochs: Count | None = None
  least_steps: Count | None = None
  steps: Whole | None = None  # overrides all these; 0 measures the weights of another run
  optimizer: str = "adamw"  # one of NAMES, or a plugin
  optimizer_options: dict[str, Any] | None = dataclasses.field(default=None, hash=False)
  learning_rate: Positive = 1e-3
  schedule: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
  warmup: Whole = 100
  weight_decay: Annotated[float, at_least(0)] = 0.1
  # What decays: what is declared a matrix, or, as in earlier runs, what has "kernel" in its name.
  decayed: Literal["matrices", "kernels"] = "matrices"
  clip: Positive | None = 1.0  # largest norm of a gradient; None: unlimited
  label_smoothing: Share = 0.0
  evaluate_every: Count | None = None  # steps; None is once an epoch
  log_every: Count = 50
  patience: Count | None = None  # evaluations without a better one; None never stops early
  average: Count | None = None  # the last evaluated checkpoints to average; None takes the best
  accumulate: Count = 1  # parts of a batch that a step works on, one after another
  shard: Literal["none", "parameters"] = "none"  # divided among devices besides the batches
  cpu_devices: Count | Literal["auto"] = "auto"  # parts of a CPU that share each batch

  def __post_init__(self):
    """Raise ValueError for an option that the optimizer lacks or refuses."""
    check(self)
    if self.steps is None and self.epochs is None and not (self.least_epochs or self.least_steps):
      raise ValueError("epochs must be a number where neither steps nor least_steps is one")
    names = [*plugins.table("optimizer", dict.fromkeys(NAMES))]
    if self.optimizer not in names:
      raise ValueError(
        f"optimizer must be one of {', '.join(names)}, not {brief(self.optimizer, repr)}"
      )
    make, given = _maker(self.optimizer), self.optimizer_options or {}
    taken = {"learning_rate", "weight_decay", *MASKS, AXES}
    known = [name for name in inspect.signature(make).parameters if name not in taken]
    if wrong := [name for name in given if name not in known]:
      raise ValueError(
        f"optimizer_options must be those of the optimizer: {self.optimizer} takes "
        f"{', '.join(known)}, not {wrong[0]!r}"
      )
    if self.weight_decay and "weight_decay" not in _matrices(self):
      raise ValueError(
        f"weight_decay={self.weight_decay:g} must be 0 with train.optimizer={self.optimizer}, "
        + (f"which has optimizer_options.{RATE} instead" if RATE in known else NO_CHOICE)
      )
    if given:
      self._try(make, given)

  @property
  def by_least(self) -> bool:
    """Whether only the least number of steps is given, and neither steps nor epochs."""
    return self.steps is None and self.epochs is None

  def warmup_of(self, steps: int) -> int:
    """Return the steps in which the rate rises; with `by_least`, a tenth of all at most."""
    return min(self.warmup, steps // 10 if self.by_least else steps - 1)

  def _try(self, make: Callable[..., optax.GradientTransformation], given: dict[str, Any]) -> None:
    """Raise ValueError if an optimizer cannot take a step with the `given` options."""

    def step(params: dict[str, jax.Array]) -> Any:
      optimizer = make(1.0, **given)
      return optimizer.update(params, optimizer.init(params), params)

    try:
      jax.eval_shape(step, {"kernel": jax.ShapeDtypeStruct((2, 2), "float32")})
    except Exception as error:  # of whatever class optax, JAX or Python raises
      why = str(error).partition("\n")[0]
      raise ValueError(f"optimizer_options={show(given)}: {self.optimizer} says: {why}") from None


def _maker(name: str) -> Callable[..., optax.GradientTransformation]:
  """Return the function of this name, of optax or of a plugin."""
  own = plugins.table("optimizer", {})
  return own.get(name) or getattr(optax, name, None) or getattr(optax.contrib, name)


def _matrices(options: Training, paths: frozenset[str] = frozenset()) -> dict[str, Any]:
  """Return the arguments that say which parameters are matrices: those for weight decay, none if an
  optimizer cannot restrict it to some, and those of Muon, which makes their steps orthogonal.
  """
  name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")

  def mask(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: name(path) in paths, params)

  def axes(params: Any) -> Any:
    def of(path: tuple, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
      if name(path) not in paths or leaf.ndim < 2:
        return None
      stacked = "experts" in name(path).split("/")  # one matrix after another
      inner, *outer = range(stacked, leaf.ndim)
      outputs = outer[0] if len(outer) == 1 else outer
      return optax.contrib.MuonDimensionNumbers(inner, outputs)

    return jax.tree_util.tree_map_with_path(of, params)

  given = inspect.signature(_maker(options.optimizer)).parameters
  masks = [name for name in MASKS if name in given and {"weight_decay", RATE} & {*given}]
  made: dict[str, Any] = {masks[0]: mask} if masks else {}
  made |= {"weight_decay": options.weight_decay} if masks and "weight_decay" in given else {}
  return made | ({AXES: axes} if AXES in given else {})


class Rate(NamedTuple):
  """The numbers of a schedule that depend on `train.learning_rate`.

  They are inputs of the compiled step, so that runs at other rates share its program. Both are
  computed in float64.
  """

  peak: Any  # a float, or float32 []
  climb: Any  # the rate of the first step, peak / warmup, less the peak

  @classmethod
  def of(cls, options: Training, steps: int) -> Rate:
    """Return the numbers for `steps` steps, float32."""
    peak = options.learning_rate
    return cls(*map(np.float32, (peak, peak / max(options.warmup_of(steps), 1) - peak)))


def schedule(options: Training, steps: int, rate: Rate) -> optax.Schedule:
  """Return the learning rate by step: a linear rise for `warmup` steps, a fall until `steps`.

  `rsqrt` falls as √(warmup / step) (Vaswani et al. 2017, section 5.3, scaled to the peak). The
  first step is taken at peak / warmup, not at a rate of zero.
  """
  steps = max(steps, 1)  # without any, the rate is not used
  peak, warmup = rate.peak, options.warmup_of(steps)
  fall = {
    "cosine": lambda: optax.cosine_decay_schedule(peak, steps - warmup),
    "linear": lambda: optax.linear_schedule(peak, 0.0, steps - warmup),
    "rsqrt": lambda: lambda step: peak * (max(warmup, 1) / (max(warmup, 1) + step)) ** 0.5,
    "constant": lambda: optax.constant_schedule(peak),
  }[options.schedule]()

  def rise(step: Any) -> Any:
    last = max(warmup - 1, 1)
    return rate.climb * (1 - jnp.clip(step, 0, last) / last) + peak

  return optax.join_schedules([rise, fall], [warmup])


@functools.lru_cache
def make_schedule(options: Training, steps: int) -> optax.Schedule:
  """Return the `schedule` of a run as one jitted function, which the host calls for its log."""
  return jax.jit(schedule(options, steps, Rate.of(options, steps)))


def decayed(model: nnx.Module, rule: str) -> frozenset[str]:
  """Return the paths of the parameters that decay: the matrices of linear maps.

  Vectors of words and positions, norms, biases, periods and phases do not decay, since 0 has a
  meaning for them. Modules that are not posexp's declare nothing: Flax calls such a matrix kernel.
  """
  paths = []
  for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
    kernel = "kernel" in str(path[-1])
    declared = isinstance(param, Matrix)
    matrix = declared or (kernel and type(param) is nnx.Param and len(param.shape) > 1)
    if matrix if rule == "matrices" else kernel:
      paths.append("/".join(map(str, path)))
  return frozenset(paths)


def make_optimizer(
  options: Training, steps: int, paths: frozenset[str] = frozenset(), rate: Rate | None = None
) -> optax.GradientTransformation:
  """Return the optimizer of optax that `options` name, after clipping by the global norm.

  Weight decay acts on the parameters with these `paths`, as `decayed` returns them. A `rate` takes
  the place of the options' own.
  """
  clip = optax.identity() if options.clip is None else optax.clip_by_global_norm(options.clip)
  chosen = OURS.get(options.optimizer, {}) | (options.optimizer_options or {})
  rates = schedule(options, steps, rate or Rate.of(options, steps))
  optimizer = _maker(options.optimizer)(rates, **_matrices(options, paths), **chosen)
  return optax.chain(clip, optimizer)
