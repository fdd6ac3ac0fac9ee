"""The page of equal bits: its pairs, representatives of them in this process, and all of them in processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.bits.flights import fly_environment, scene_files, train_once
from tests.bits.pairs import PAGE, apart, measure, pairs, stated, write_page


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return scene_files(tmp_path_factory.mktemp("scenes"))


def test_the_page_states_every_pair_and_writes_what_it_reads(monkeypatch, tmp_path) -> None:
    found = stated()
    assert found.keys() == {(pair.ways, pair.subject) for pair in pairs()}
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    monkeypatch.setattr("tests.bits.pairs.PAGE", copy)
    write_page(found | {("two threads", "ppo"): 0.5})
    assert stated() == found | {("two threads", "ppo"): 0.5}


def test_states_that_differ_are_apart() -> None:
    one = {"a": torch.tensor([1.0, torch.inf])}
    assert apart(one, {"a": torch.tensor([1.0, torch.inf])}) == 0
    assert apart(one, {"a": torch.tensor([1.5, torch.inf])}) == 0.5
    assert apart(one, {"a": torch.ones(3)}) == apart(one, {}) == apart(one, {"a": torch.ones(2)}) == torch.inf


def test_environments_that_share_rows_or_have_other_threads_and_lanes_fly_the_same_bits(scenes) -> None:
    whole = fly_environment(scenes)
    ways: list[dict] = [{"parts": (1, 3, 2)}, {"threads": 2}, {"tracer": "native 4"}, {"tracer": "native 8"}]
    assert [apart(whole, fly_environment(scenes, **way)) for way in ways] == [0, 0, 0, 0]


def test_a_resumed_dpo_run_equals_a_straight_one(scenes, tmp_path) -> None:
    train_once(tmp_path / "parts", "dpo", scenes, drop=3)
    resumed = train_once(tmp_path / "parts", "dpo", scenes)
    assert apart(train_once(tmp_path / "whole", "dpo", scenes), resumed) == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pairs_are_as_equal_as_the_page_states(tmp_path) -> None:
    """Seventy trainings in processes of their own, eight minutes. Differences may be 30 times those of the page."""
    page = stated()
    found = {(ways, subject): most for ways, subject, most in measure(tmp_path)}
    assert {pair: most for pair, most in found.items() if most > 30 * page[pair]} == {}
