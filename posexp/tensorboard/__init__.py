"""TensorBoard, a tracker: event files in the folder of a run."""
