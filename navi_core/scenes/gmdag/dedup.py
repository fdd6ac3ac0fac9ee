"""Structural deduplication: equal things are found by hash for speed, and proved equal for truth."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from navi_core.kernels.octree.lists import list_hashes, lists_equal, take_lists

Rows = TypeVar("Rows", npt.NDArray[np.int64], npt.NDArray[np.uint32])
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


def unique_rows(rows: Rows) -> tuple[Rows, Int64]:
    """Return the distinct rows, in the order of their first occurrence, and each row's place among them.

    Args:
        rows: (N, K) integers.
    """
    mixed = np.zeros(len(rows), dtype=np.uint64)
    for column in range(rows.shape[1]):
        mixed = (mixed ^ rows[:, column].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    first, back = _grouped(mixed)
    if (rows[first[back]] == rows).all():
        return rows[first], back
    # Two different rows share a hash: fall back to comparing rows themselves.
    first, back = _first_seen([row.tobytes() for row in rows])
    return rows[first], back


def unique_lists(bounds: Int64, items: Int32) -> tuple[Int64, Int32, Int64]:
    """Return the distinct lists, in the order of their first occurrence, and each list's place among them.

    Args:
        bounds: (N + 1,) bounds of the lists.
        items: (M,) their items.

    Returns:
        Bounds (K + 1,) and items of the distinct lists, and (N,) which of them each list is.
    """
    first, back = _grouped(list_hashes(bounds, items))
    if not lists_equal(bounds, items, first[back]):
        pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist())
        first, back = _first_seen([items[start:end].tobytes() for start, end in pairs])
    return *take_lists(bounds, items, first), back


def _grouped(hashes: npt.NDArray[np.uint64]) -> tuple[Int64, Int64]:
    """Return the first index of each distinct value, ascending, and each value's place among those."""
    _, first, back = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[back]


def _first_seen(keys: list[bytes]) -> tuple[Int64, Int64]:
    seen: dict[bytes, int] = {}
    back = np.array([seen.setdefault(key, len(seen)) for key in keys], np.int64)
    _, first = np.unique(back, return_index=True)
    return first.astype(np.int64), back
