"""From run folders to an answer: how runs are read, grouped, tested and shown."""
