"""Released checkpoints in Hugging Face's format: read, looked at and written; this room alone knows
their names.
"""

PREFIX = "hf:"  # of a checkpoint, where the folder of a run may stand, too
