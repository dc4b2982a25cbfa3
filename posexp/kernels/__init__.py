"""Products and attention made fast; what each computes is said in one line."""
