"""Released checkpoints in Hugging Face's format: read, looked at and written; this room alone knows
their names.
"""
