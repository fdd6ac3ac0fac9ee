"""Words of version 1 octrees: how they are packed.

Inner word: bit 63 = 0, child mask in bits 62–55, low 32 bits = index of the first of popcount(mask)
words whose low 32 bits are child indices. Leaf word: bit 63 = 1, semantic in bits 31–16, fp16 distance
[m] in bits 15–0. Octant = x | y<<1 | z<<2. Word 0 is the root.
"""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

LEAF_BIT = np.uint64(1 << 63)
POPCOUNT = np.array([bin(mask).count("1") for mask in range(256)], dtype=np.int64)
"""Children of each mask."""


def is_leaf(words: Words) -> npt.NDArray[np.bool_]:
    """Return which words are leaves."""
    leaf: npt.NDArray[np.bool_] = (words & LEAF_BIT) != 0
    return leaf


def child_mask(words: Words) -> npt.NDArray[np.int64]:
    """Return the child mask (0–255) of inner words."""
    return ((words >> np.uint64(55)) & np.uint64(0xFF)).astype(np.int64)


def low_index(words: Words) -> npt.NDArray[np.int64]:
    """Return the low 32 bits: the child table of an inner word, the child of a table word."""
    return (words & np.uint64(0xFFFFFFFF)).astype(np.int64)


def leaf_semantic(words: Words) -> npt.NDArray[np.int32]:
    """Return the semantic id of leaf words; 0 away from surfaces."""
    return ((words >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.int32)


def leaf_distance(words: Words) -> npt.NDArray[np.float16]:
    """Return the distance of leaf words [m] as it is stored."""
    return (words & np.uint64(0xFFFF)).astype(np.uint16).view(np.float16)


def leaf_words(distance: npt.NDArray[np.float16], semantic: npt.NDArray[np.integer]) -> Words:
    """Pack leaves from fp16 distances [m] and semantic ids 0–65535."""
    bits = np.ascontiguousarray(distance, dtype=np.float16).view(np.uint16).astype(np.uint64)
    return LEAF_BIT | (np.asarray(semantic).astype(np.uint64) << np.uint64(16)) | bits


def inner_words(mask: npt.NDArray[np.integer], table: npt.NDArray[np.integer]) -> Words:
    """Pack inner words from child masks 1–255 and indices of their child tables."""
    return (np.asarray(mask).astype(np.uint64) << np.uint64(55)) | np.asarray(table).astype(np.uint64)


def ranks(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return 0…c−1 for each count c, concatenated."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)


def morton(voxels: Int64) -> Int64:
    """Interleave the bits of (N, 3) indices below 2¹¹: octant x | y<<1 | z<<2 in every group of three."""
    key = np.zeros(len(voxels), dtype=np.int64)
    for axis in range(3):
        key |= _spread(voxels[:, axis]) << axis
    return key


def _spread(value: Int64) -> Int64:
    value = (value | value << 32) & 0x1F00000000FFFF
    value = (value | value << 16) & 0x1F0000FF0000FF
    value = (value | value << 8) & 0x100F00F00F00F00F
    value = (value | value << 4) & 0x10C30C30C30C30C3
    return (value | value << 2) & 0x1249249249249249


def positions(keys: Int64) -> Int64:
    """Return the (N, 3) cell indices of Morton keys."""
    return np.stack([_gather(keys >> axis) for axis in range(3)], axis=1)


def _gather(value: Int64) -> Int64:
    value = value & 0x1249249249249249
    value = (value | value >> 2) & 0x10C30C30C30C30C3
    value = (value | value >> 4) & 0x100F00F00F00F00F
    value = (value | value >> 8) & 0x1F0000FF0000FF
    value = (value | value >> 16) & 0x1F00000000FFFF
    return (value | value >> 32) & 0x1FFFFF
