"""Mutation testing: mutants of a module, their effect on its living functions, the sample, and the outcome of one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.mutate.__main__ import equivalents, judged, sample, tried
from tests.mutate.kernels import table
from tests.mutate.mutations import Mutant, apply, mutants_of
from tests.mutate.rooms import ROOMS, ROOT, ReachMap, modules_of

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

    assert apply(mutants_of(module)[3])
    assert least([1, 2]) == 3 and not apply(mutants_of(module)[3])


def test_a_statement_left_out_keeps_the_variables_of_its_closure(tmp_path, monkeypatch):
    (tmp_path / "my_counter.py").write_text(
        "def counter():\n    seen = []\n    def count():\n        seen.append(1)\n        return 7\n"
        "    return count, seen\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_counter import counter

    count, seen = counter()
    (left_out,) = [mutant for mutant in mutants_of("my_counter") if mutant.text.endswith("→ pass")]
    assert left_out.statement == "seen.append(1)" and apply(left_out)
    assert count() == 7 and not seen


def test_a_mutant_survives_a_test_that_cannot_see_it(module, tmp_path):
    weak, strong = tmp_path / "test_weak.py", tmp_path / "test_strong.py"
    weak.write_text(_TEST.format("1", 2))
    strong.write_text(_TEST.format("1, 2", 2))
    minimum = mutants_of(module)[3]
    outcomes = [tried(minimum, names, 60) for names in ([str(weak)], [str(strong)], [], [f"{weak}::absent"])]
    assert [outcome for outcome, _ in outcomes] == ["survived", "killed", "not reached", "unknown tests"]
    assert outcomes[1][1].endswith("test_strong.py::test_least")


@pytest.mark.slow
def test_a_test_that_fails_without_a_mutant_kills_none(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_broken.py").write_text("def test_least():\n    assert False\n")
    (tmp_path / "test_weak.py").write_text(_TEST.format("1", 2))
    seconds, proven = {"test_broken.py::test_least": 0.1, "test_weak.py::test_least": 0.2}, dict[str, bool]()
    mutant = mutants_of(module)[3]
    row = judged(mutant, "world", ReachMap(seconds, {f"{module}:{mutant.line}": list(seconds)}), 9.0, proven)
    assert (row["outcome"], row["tests"], proven) == ("survived", 1, {"test_broken.py::test_least": False})


@pytest.mark.slow
def test_a_mutant_kills_where_tests_cannot_be_imported_any_more(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_import.py").write_text(_TEST.format("1", 2) + "\nassert least([1, 2]) == 2\n")
    minimum, name = mutants_of(module)[3], "test_import.py::test_least"
    row = judged(minimum, "world", ReachMap({name: 0.1}, {f"{module}:{minimum.line}": [name]}), 9.0, {})
    assert row["outcome"] == "killed"


def test_the_fastest_tests_that_reach_a_mutant_are_chosen_the_rooms_own_first():
    mutant = Mutant("m", 0, 7, "", "")
    seconds = {"slow": 50.0, "fast": 0.1, "slower": 55.0, "tests/world/test_a.py::own": 0.2}
    reach = ReachMap(seconds, {"m:7": list(seconds), "m:6": ["fast"]})
    assert reach.chosen(mutant, "world", 60.0, set()) == ["tests/world/test_a.py::own", "fast", "slow"]
    assert reach.chosen(mutant, "world", 60.0, {"slow"}) == ["tests/world/test_a.py::own", "fast", "slower"]
    assert reach.chosen(Mutant("m", 0, 8, "", ""), "world", 60.0, set()) == []


def test_a_larger_sample_continues_a_smaller_one():
    few, many = (sample("record", number, 3) for number in (20, 60))
    assert many[:20] == few and len(set(many)) == 60
    assert len({mutant.module for mutant in many}) >= 10 and set(ROOMS) >= {"world", "learn"}


def test_each_kernel_mutant_stands_once_in_its_file_and_has_tests():
    tests, mutants = table()
    assert len(mutants) == 50 and all((ROOT / file).exists() for files in tests.values() for file in files)
    for row in mutants:
        text = (ROOT / "navi_core/kernels" / row["file"]).read_text()
        assert text.count(row["old"]) == 1 and row["group"] in tests and row["why"], row


def test_equivalent_mutants_are_mutants():
    known = equivalents()
    every = {
        (mutant.module, mutant.statement, mutant.text)
        for module in {module for module, _, _ in known} & {name for room in ROOMS for name in modules_of(room)}
        for mutant in mutants_of(module)
    }
    every |= {(row["file"], row["old"], f"{row['old']} → {row['new']}") for row in table()[1]}
    assert known.keys() <= every and all(known.values())
