"""Numbers as bytes: what is written is read again, and broken bytes are named."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.kernels.octree.lists import decode_numbers, encode_numbers


def test_numbers_of_every_length_are_read_as_they_were_written() -> None:
    numbers = np.array([0, 1, 127, 128, 300, 2**14 - 1, 2**14, 2**21, 2**28 + 5, 2**35 - 1], np.int64)
    data, read = encode_numbers(numbers), np.zeros(len(numbers), np.int64)
    assert decode_numbers(data, read) == -1
    assert read.tolist() == numbers.tolist()
    assert bytes(encode_numbers(np.array([300], np.int64))) == b"\xac\x02"  # LEB128


@pytest.mark.parametrize(("data", "place"), [([128], 0), ([1, 255, 255, 255, 255, 255, 1], 1)])
def test_bytes_that_end_early_or_go_on_too_long_are_named(data: list[int], place: int) -> None:
    assert decode_numbers(np.array(data, np.uint8), np.zeros(2, np.int64)) == place
