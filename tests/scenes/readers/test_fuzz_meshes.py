"""Mutated mesh files of every format are an error, or a mesh."""

from __future__ import annotations

import pytest

from tests.scenes.readers.fuzz_meshes import fuzz


def test_mutated_meshes_are_an_error_or_a_mesh():
    reported = fuzz(200)
    assert reported["refused"] > 40 and reported["valid"] > 20


@pytest.mark.slow
def test_two_thousand_mutated_meshes_are_an_error_or_a_mesh():
    reported = fuzz(2000, seed=1)
    assert reported["refused"] > 400 and reported["valid"] > 200
