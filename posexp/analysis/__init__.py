"""What an encoding is and does, in words and figures, before and after training."""
