"""Mutation testing: mutants of a module, their effect on its living functions, the sample, and the outcome of one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.mutate.__main__ import ROOMS, chosen_tests, sample, tried
from tests.mutate.mutations import Mutant, apply, mutants_of

_CODE = '''
def least(values, limit=3):
    """Doc."""
    if len(values) > limit:
        raise ValueError(f"{limit + 1} values")
    return min(values) + 1
'''
_TEST = "from my_least import least\n\ndef test_least():\n    assert least([{}]) == {}\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_least.py").write_text(_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_least", raising=False)
    return "my_least"


def test_mutants_leave_messages_and_defaults_alone(module):
    found = [mutant.text for mutant in mutants_of(module)]
    assert found == [
        "len(values) > limit → not len(values) > limit",
        "len(values) > limit → len(values) >= limit",
        "min(values) + 1 → min(values) - 1",
        "min → max",
        "1 → 2",
    ]


def test_a_mutant_changes_functions_that_were_imported_before(module):
    from my_least import least

    apply(mutants_of(module)[3])
    assert least([1, 2]) == 3


def test_a_mutant_survives_a_test_that_cannot_see_it(module, tmp_path):
    weak, strong = tmp_path / "test_weak.py", tmp_path / "test_strong.py"
    weak.write_text(_TEST.format("1", 2))
    strong.write_text(_TEST.format("1, 2", 2))
    minimum = mutants_of(module)[3]
    assert [tried(minimum, names, 60) for names in ([str(weak)], [str(strong)], [])] == [
        "survived",
        "killed",
        "not reached",
    ]


def test_the_fastest_tests_that_reach_a_mutant_are_chosen():
    mutant = Mutant("m", 0, 7, "")
    reach = {
        "slow": {"seconds": 50.0, "lines": {"m": [7]}},
        "fast": {"seconds": 0.1, "lines": {"m": [6, 7]}},
        "slower": {"seconds": 55.0, "lines": {"m": [7]}},
        "other": {"seconds": 0.1, "lines": {"m": [6], "n": [7]}},
    }
    assert chosen_tests(mutant, reach) == ["fast", "slow"]


def test_a_larger_sample_continues_a_smaller_one():
    few, many = (sample("record", number, 3) for number in (20, 60))
    assert many[:20] == few and len(set(many)) == 60
    assert len({mutant.module for mutant in many}) >= 10 and set(ROOMS) >= {"world", "learn"}
