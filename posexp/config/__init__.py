"""Configuration: where it is kept, how it is composed, and the dataclasses it becomes.

`command_line.compose` and `resolve` lead from files and overrides to the plain config of a run, and
`build` from a section of it to a dataclass. Command lines are read in `command_line` (Hydra's
overrides) and `arguments` (argparse).
"""

from posexp.config.checks import show, show_options
from posexp.config.composed import RunOptions, encodings_node, options, resolve
from posexp.config.plugins import CONFIGS
from posexp.config.schema import build, look_up, nearest, unknown_name
