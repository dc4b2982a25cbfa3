"""Fast products and attention."""
