"""The azimuth circle: what a convolution repeats behind the ends of an axis that wraps."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["repeats", "wrap"]


def repeats(kernel: int, stride: int) -> tuple[int, int]:
    """Return how many bins a circular convolution repeats before the first bin and behind the last.

    Output bin i is centred on input bin stride·i, so rolling the input by `stride` bins rolls the output by one when
    stride divides the number of bins. With stride 2 the last window ends a bin earlier: that bin need not be repeated.
    """
    before = kernel // 2
    return before, kernel - before - stride


def wrap(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Return `x` with its last `before` bins along `dim` repeated in front and its first `after` bins behind."""
    parts = [x.narrow(dim, x.shape[dim] - before, before), x]
    if after:
        parts.append(x.narrow(dim, 0, after))
    return torch.cat(parts, dim=dim)
