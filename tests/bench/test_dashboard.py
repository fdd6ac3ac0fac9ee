"""The dashboard benchmark watches only in its watched turns."""

from __future__ import annotations

import pytest

from navi_core.bench.learning.dashboard import run_dashboard
from navi_core.world import Field
from tests.learn.builders import small_config


@pytest.mark.slow
def test_observations_are_published_only_in_watched_turns(apartments):
    config = small_config(rows=4, ppo={"rollout": 32})
    result = run_dashboard(config, Field(apartments, threads=1), pairs=2, rounds=2)
    assert len(result["without"]) == len(result["watched"]) == 2 and result["steps"] == 128
    assert result["unwatched_observations"] == 0 < result["observations"]
    assert result["low"] <= result["overhead"] <= result["high"] and 0 < result["direct_share"] < 1
