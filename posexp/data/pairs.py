"""Pairs of sentences, read in a stream from the hub or the user's own files."""

from collections.abc import Callable, Iterator

Pair = tuple[str, str]
Pairs = Callable[[], Iterator[Pair]]  # a split: each call reads it from its beginning
