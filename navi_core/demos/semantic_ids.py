"""Semantic ids of one vocabulary told by those of another."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["id_table"]

_IDS = 65_536


def id_table(own: Mapping[str, int], common: Mapping[str, int]) -> npt.NDArray[np.uint16]:
    """Return (65536,) the id of `common` by that of `own`.

    0 means no surface. An id without a name is a surface that nothing names, as all are where nothing has names; so is
    one whose name `common` lacks.

    Args:
        own: Semantic id by name.
        common: Semantic id by name, of the vocabulary that is wanted.
    """
    table = np.ones(_IDS, np.uint16)
    table[0] = 0
    for name, number in own.items():
        table[number] = common.get(name, 1)
    return table
