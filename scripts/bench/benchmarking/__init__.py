"""Cost: how fast each encoding trains, predicts and translates, and how much memory it takes."""
