"""Seeded initial weights, independent of other threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded"]

# torch draws initial weights from one generator of the process: two threads that build at once would seed it for
# each other, and either would get weights of no seed.
_GENERATOR = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator while modules are built, and leave it as it was; one thread at a time.

    Args:
        seed: Of the weights.
    """
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
