"""Mutated files of both versions are refused by name, or are scenes that can be flown."""

from __future__ import annotations

import pytest

from tests.scenes.gmdag.fuzz_gmdag import fuzz


def test_a_few_hundred_mutated_files_are_refused_or_flown():
    reported = fuzz(200, seed=1)
    assert reported["refused"] > 100
    assert reported["flown"] > 7


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_mutated_files_are_refused_or_flown():
    reported = fuzz(20_000)
    assert reported["refused"] > 10_000
    assert reported["flown"] > 500
    assert reported["slowest"] < 20_000
