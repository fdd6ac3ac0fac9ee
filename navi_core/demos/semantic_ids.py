"""Semantic ids translated from one vocabulary to another."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

MOST_IDS = 65_535
"""Largest semantic id: files keep 16 bits for it."""
UNNAMED = 1
"""Semantic id of a surface that nothing names."""


def id_table(source: Mapping[str, int], target: Mapping[str, int]) -> npt.NDArray[np.uint16]:
    """Return the translation table (65536,) from ids of `source` to ids of `target`.

    0 means no surface. An id without a name, or with a name that `target` lacks, becomes `UNNAMED`.

    Args:
        source: Semantic id by name in the data.
        target: Semantic id by name in the wanted vocabulary.
    """
    table = np.full(MOST_IDS + 1, UNNAMED, np.uint16)
    table[0] = 0
    for name, number in source.items():
        table[number] = target.get(name, UNNAMED)
    return table
