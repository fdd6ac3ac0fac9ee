"""Deduplication: hash for speed, equality for truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from navi_core.scenes.gmdag import dag
from navi_core.scenes.gmdag.dag import unique_lists, unique_rows


@pytest.fixture(params=["hashed", "every hash collides"])
def hashing(request, monkeypatch):
    """Both ways: with good hashes, and with one hash for everything."""
    if request.param != "hashed":
        real = dag._grouped
        monkeypatch.setattr(dag, "_grouped", lambda hashes: real(np.zeros_like(hashes)))


def test_equal_rows_are_found_even_when_every_hash_collides(hashing):
    rows = np.array([[3] * 8, [2] * 8, [3] * 8, [1] * 8], np.int64)
    unique, back = unique_rows(rows)
    np.testing.assert_array_equal(unique[back], rows)
    np.testing.assert_array_equal(unique[:, 0], [3, 2, 1])  # in the order of their first occurrence


def test_equal_lists_are_found_even_when_every_hash_collides(hashing):
    lists = [[1, 2], [1], [2], [1, 2], [1, 2, 3], [1]]
    bounds = np.cumsum([0, *map(len, lists)])
    kept, items, back = unique_lists(bounds, np.concatenate(lists).astype(np.int32))
    found = [items[kept[k] : kept[k + 1]].tolist() for k in range(len(kept) - 1)]
    assert found == [[1, 2], [1], [2], [1, 2, 3]]
    assert [found[k] for k in back] == lists


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=40))
def test_deduplicated_lists_reconstruct_the_originals(lists):
    bounds = np.cumsum([0, *map(len, lists)])
    kept, items, back = unique_lists(bounds, np.concatenate(lists).astype(np.int32))
    found = [items[kept[k] : kept[k + 1]].tolist() for k in range(len(kept) - 1)]
    assert [found[k] for k in back] == lists
    assert len({tuple(one) for one in found}) == len(found)
