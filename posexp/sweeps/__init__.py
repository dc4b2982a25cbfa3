"""Many runs: which a sweep is made of, who trains them, and what becomes of each."""
