"""Products and attention made fast; one line says what each computes."""
