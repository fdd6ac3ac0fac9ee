"""Weights meet another corpus: the run warns of names with other semantic ids than those that were learned."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from navi_core.learn.run.records import changed_ids_warning
from tests.learn.run.test_train_loop import ROWS, fly, make_config
from tests.learn.toy_environments import MixedEndingsEnv

LEARNED = {"surface": 1, "chair": 2, "wall": 3}


def over(vocabulary: dict[str, int]) -> MixedEndingsEnv:
    """Return an environment that claims to be over scenes with these ids."""
    env = MixedEndingsEnv(ROWS)
    env.field = SimpleNamespace(scenes=[], vocabulary=vocabulary)
    return env


@pytest.mark.parametrize(
    ("now", "reported"),
    [
        (LEARNED, ""),
        (LEARNED | {"zebra": 4}, ""),
        ({"surface": 1, "chair": 2}, ""),
        ({"surface": 1, "bed": 2, "chair": 3, "wall": 4}, "2 of 4 names differ, first 'chair' (2 there, 3 here)"),
    ],
)
def test_a_run_from_other_weights_warns_of_changed_ids(tmp_path, caplog, now, reported):
    config = make_config(total_steps=None)
    first, _ = fly(tmp_path / "a", config, env=over(LEARNED), stop=lambda: True)
    fly(tmp_path / "b", config, env=over(now), initial=first.checkpoint, stop=lambda: True)
    warnings = [record.getMessage() for record in caplog.records if "semantic ids" in record.getMessage()]
    assert len(warnings) == bool(reported) and all(reported in text and "--init none" in text for text in warnings)


def test_weights_without_a_vocabulary_give_no_warning():
    assert changed_ids_warning({}, LEARNED, "v001") is None
    assert "1 of 3 names differ, first 'wall'" in (changed_ids_warning({"wall": 2}, LEARNED, "v001") or "")
