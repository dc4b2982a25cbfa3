"""The training loop and its step, on any number of devices and processes."""
