"""Semantic ids of one vocabulary told by those of another."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_IDS", "UNNAMED", "id_table"]

MOST_IDS = 65_535
"""Largest semantic id: files keep 16 bits for it."""
UNNAMED = 1
"""Semantic id of a surface that nothing names."""


def id_table(own: Mapping[str, int], common: Mapping[str, int]) -> npt.NDArray[np.uint16]:
    """Return (65536,) the id of `common` by that of `own`.

    0 means no surface. An id without a name is a surface that nothing names, as all are where nothing has names; so is
    one whose name `common` lacks.

    Args:
        own: Semantic id by name.
        common: Semantic id by name, of the vocabulary that is wanted.
    """
    table = np.full(MOST_IDS + 1, UNNAMED, np.uint16)
    table[0] = 0
    for name, number in own.items():
        table[number] = common.get(name, UNNAMED)
    return table
