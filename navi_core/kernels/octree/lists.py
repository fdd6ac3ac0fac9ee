"""Ragged lists of ascending integers (CSR): hashing, comparison, and variable-length (varint) encoding.

A number is written seven bits a byte, the lowest first; the highest bit marks that another byte follows.
"""

import numba
import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
_LONGEST = 5


@numba.njit(cache=True)
def list_hashes(bounds: Int64, items: Int32) -> npt.NDArray[np.uint64]:
    """Hash each list (N,): its length and its items.

    Args:
        bounds: (N + 1,) bounds of the lists.
        items: (M,) their items.
    """
    out = np.zeros(bounds.shape[0] - 1, np.uint64)
    for n in range(out.shape[0]):
        mixed = np.uint64(bounds[n + 1] - bounds[n])
        for i in range(bounds[n], bounds[n + 1]):
            mixed = (mixed ^ np.uint64(items[i])) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        out[n] = mixed
    return out


@numba.njit(cache=True)
def lists_equal(bounds: Int64, items: Int32, other: Int64) -> bool:
    """Test whether every list n equals the list `other[n]`."""
    for n in range(other.shape[0]):
        a, b = bounds[n], bounds[other[n]]
        length = bounds[n + 1] - a
        if length != bounds[other[n] + 1] - b:
            return False
        if not np.array_equal(items[a : a + length], items[b : b + length]):
            return False
    return True


@numba.njit(cache=True)
def take_lists(bounds: Int64, items: Int32, chosen: Int64) -> tuple[Int64, Int32]:
    """Gather CSR lists: return the offsets (K + 1,) and items of the chosen ones (K,)."""
    out = np.zeros(chosen.shape[0] + 1, np.int64)
    for k in range(chosen.shape[0]):
        out[k + 1] = out[k] + bounds[chosen[k] + 1] - bounds[chosen[k]]
    taken = np.empty(out[-1], np.int32)
    for k in range(chosen.shape[0]):
        taken[out[k] : out[k + 1]] = items[bounds[chosen[k]] : bounds[chosen[k] + 1]]
    return out, taken


@numba.njit(cache=True, inline="always")
def _put(value: int, out: UInt8, at: int) -> int:
    while value >= 128:
        out[at] = (value & 127) | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@numba.njit(cache=True, inline="always")
def _get(data: UInt8, at: int) -> tuple[int, int]:
    """Decode one varint: (number, next position); the position is −1 if the bytes end early or exceed 35 bits."""
    value = 0
    for k in range(_LONGEST):
        if at + k >= data.shape[0]:
            return 0, -1
        byte = np.int64(data[at + k])
        value |= (byte & 127) << (7 * k)
        if byte < 128:
            return value, at + k + 1
    return 0, -1


@numba.njit(cache=True)
def encode_numbers(values: Int64) -> UInt8:
    """Encode numbers (N,) from 0 to 2³⁵ − 1 as varint bytes."""
    out = np.empty(_LONGEST * values.shape[0], np.uint8)
    at = 0
    for i in range(values.shape[0]):
        at = _put(values[i], out, at)
    return out[:at].copy()


@numba.njit(cache=True)
def decode_numbers(data: UInt8, values: Int64) -> int:
    """Decode varint bytes into `values` (N,); return −1, or the offset of the first invalid byte."""
    at = 0
    for i in range(values.shape[0]):
        here = at
        values[i], at = _get(data, at)
        if at < 0:
            return here
    return -1 if at == data.shape[0] else at


@numba.njit(cache=True)
def encode_items(bounds: Int64, items: Int32) -> UInt8:
    """Delta-encode ascending lists as varints, zigzag for each list's first item.

    A list's first item is written as its difference to the previous list's first item, 0, −1, 1, −2, … as
    0, 1, 2, 3, …; a further item as the gap to the one before, less one.

    Args:
        bounds: (N + 1,) bounds of the lists, none empty.
        items: (M,) items, strictly ascending within a list.
    """
    out = np.empty(_LONGEST * items.shape[0], np.uint8)
    at, before = 0, np.int64(0)
    for n in range(bounds.shape[0] - 1):
        first = np.int64(items[bounds[n]])
        step = first - before
        at = _put((step << 1) ^ (step >> 63), out, at)
        before = first
        for i in range(bounds[n] + 1, bounds[n + 1]):
            at = _put(np.int64(items[i]) - np.int64(items[i - 1]) - 1, out, at)
    return out[:at].copy()


@numba.njit(cache=True)
def decode_items(data: UInt8, bounds: Int64, limit: int, items: Int32) -> int:
    """Decode delta-encoded varint lists into `items`; return −1, or the offset of the first invalid byte.

    Args:
        data: Bytes of `encode_items`.
        bounds: (N + 1,) bounds of the lists, none empty, from 0 to the number of items.
        limit: Items must be below this.
        items: (M,) out.
    """
    at, before = 0, np.int64(0)
    for n in range(bounds.shape[0] - 1):
        here = at
        value, at = _get(data, at)
        before += (value >> 1) ^ -(value & 1)
        if at < 0 or before < 0 or before >= limit:
            return here
        items[bounds[n]] = before
        item = before
        for i in range(bounds[n] + 1, bounds[n + 1]):
            here = at
            value, at = _get(data, at)
            item += value + 1
            if at < 0 or item >= limit:
                return here
            items[i] = item
    return -1 if at == data.shape[0] else at


@numba.njit(cache=True)
def first_corners(corners: npt.NDArray[np.uint32]) -> tuple[Int32, Int64]:
    """Deduplicate vertices with a hash table: number distinct corners in the order of their first occurrence.

    Args:
        corners: (3·F, 3) bit patterns of positions.

    Returns:
        (3·F,) number of each corner; (V,) where each was first seen.
    """
    size = 1
    while size < 2 * corners.shape[0]:
        size *= 2
    table = np.full(size, -1, np.int32)
    number = np.empty(corners.shape[0], np.int32)
    first = np.empty(corners.shape[0], np.int64)
    used = 0
    for i in range(corners.shape[0]):
        mixed = np.uint64(0)
        for a in range(3):
            mixed = (mixed ^ np.uint64(corners[i, a])) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        slot = np.int64(mixed & np.uint64(size - 1))
        while True:
            found = table[slot]
            if found < 0:
                table[slot] = used
                first[used] = i
                number[i] = used
                used += 1
                break
            j = first[found]
            if corners[i, 0] == corners[j, 0] and corners[i, 1] == corners[j, 1] and corners[i, 2] == corners[j, 2]:
                number[i] = found
                break
            slot = (slot + 1) & (size - 1)
    return number, first[:used].copy()


@numba.njit(cache=True)
def encode_faces(number: Int32) -> UInt8:
    """Delta-encode vertex indices, numbered by first occurrence, as varints: difference to the next new index."""
    out = np.empty(_LONGEST * number.shape[0], np.uint8)
    at, fresh = 0, 0
    for i in range(number.shape[0]):
        at = _put(fresh - number[i], out, at)
        if number[i] == fresh:
            fresh += 1
    return out[:at].copy()


@numba.njit(cache=True)
def decode_faces(data: UInt8, vertices: int, number: Int32) -> int:
    """Decode varints of `encode_faces` to vertex indices `number`; return −1, or the first invalid byte's offset."""
    at, fresh = 0, 0
    for i in range(number.shape[0]):
        here = at
        back, at = _get(data, at)
        if at < 0 or back > fresh or (back == 0 and fresh >= vertices):
            return here
        number[i] = fresh - back
        if back == 0:
            fresh += 1
    return -1 if at == data.shape[0] and fresh == vertices else at
