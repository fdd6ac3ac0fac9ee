"""Launchpad settings: invalid values are refused with the allowed range."""

import pytest

from navi_core.errors import ConfigError
from navi_pipeline.defs.corpus import CompileSettings
from navi_pipeline.defs.evaluation import EvaluationSettings
from navi_pipeline.lib.corpus.demonstrations import expert_config
from navi_pipeline.lib.corpus.scenes import plan_scenes


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        (lambda: EvaluationSettings(starts=0).protocol(), "starts = 0: expected at least 1"),
        (lambda: CompileSettings(resolution=300).compile_config(), "resolution 300 is not a power of two"),
        (lambda: expert_config("quick", episodes=0), "episodes = 0: expected at least 1"),
    ],
)
def test_invalid_setting_error_names_its_bound(call, reported):
    with pytest.raises(ConfigError, match=reported):
        call()


@pytest.mark.parametrize(("split", "most"), [("train", 5000), ("validation", 4000)])
def test_scene_count_outside_the_seed_range_is_refused(monkeypatch, split, most):
    monkeypatch.setattr("navi_core.scenes.generate_scene", lambda family, seed: pytest.fail("nothing is to be made"))
    for count in (-3, most + 1):
        with pytest.raises(ConfigError, match=f"{split}={count} scenes; allowed: 0 to {most}"):
            plan_scenes("apartment", {split: count})
