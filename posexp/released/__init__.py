"""Released checkpoints in Hugging Face's format, whose names are known in this room alone."""

PREFIX = "hf:"  # of a checkpoint, where the folder of a run may stand, too
