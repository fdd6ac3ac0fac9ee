"""Walk over all settings: each acts, is warned of, is refused, or is listed with a test of its own."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from navi_core.config import (
    ActorConfig,
    EnvironmentConfig,
    EvalConfig,
    ExpertConfig,
    ExplorerConfig,
    TrainConfig,
    config_hash,
    parse_config,
)
from navi_core.config.base import setting_paths
from navi_core.config.service import ServeConfig
from navi_pipeline.settings import AblationConfig, NightlyConfig, StudyConfig, SweepConfig
from tests.config.walk import SCENARIOS, Walker

NAMES = [".".join(path) for path in setting_paths(TrainConfig)]
_STOPPING = "learn/run/test_early_stopping.py"
_APEX = "scale/test_apex.py"
_SMOOTHER = "learn/estimators/test_drift_smoother.py"
_SEGMENTS = "learn/rollout/test_segments.py::test_short_segments_are_dropped_and_counted"
LISTED: dict[str, str] = {
    "threads": "learn/run/test_stages_and_errors.py::test_threads_are_measured_once_and_kept_with_the_run",
    "compile.decimate": "scenes/test_decimation.py::test_flat_walls_cut_into_many_triangles_become_few_and_stay_exact",
    "policy.recovery": "evaluate/test_protocol.py::test_stuck_policy_recovers_if_trained_with_recovery",
    "policy.done_after": "evaluate/test_done.py::test_a_policy_that_pushes_against_a_wall_stops_there_when_all_is_seen",
    "policy.picture_channels": "tasks/test_atari.py::test_ppo_and_ape_x_learn_from_images",
    "learner_options": "learn/algorithms/test_custom_learners.py::test_custom_learner_command_trains_and_resumes",
    "grpo.min_steps": _SEGMENTS,
    "dpo.min_steps": _SEGMENTS,
    "dpo.pairs_hash": "config/test_settings_walk.py::test_the_hash_of_the_pairs_is_part_of_the_run",
    "early_stopping.reward_ema_beta": f"{_STOPPING}::test_reward_slump_delays_the_stop_until_recovery",
    "early_stopping.window": f"{_STOPPING}::test_adaptation_counts_turns_of_the_smoothed_return",
    "early_stopping.td_var_floor": f"{_STOPPING}::test_a_variance_at_its_floor_without_improvement_ends_a_run",
    "early_stopping.trend": f"{_STOPPING}::test_a_trend_keeps_a_run_going",
    "early_stopping.slump": f"{_STOPPING}::test_reward_slump_delays_the_stop_until_recovery",
    "early_stopping.rise": f"{_STOPPING}::test_a_run_that_has_not_begun_to_learn_goes_on",
    "early_stopping.aggregate": f"{_STOPPING}::test_worker_metrics_aggregate_by_median_or_trimmed_mean",
    "early_stopping.trim": f"{_STOPPING}::test_worker_metrics_aggregate_by_median_or_trimmed_mean",
    "kernel_smoothing.block": f"{_SMOOTHER}::test_blockwise_neighbours_equal_the_full_matrix",
    "adaptation.tau_bounds": f"{_STOPPING}::test_adaptation_moves_within_its_bounds_and_then_rests",
    "adaptation.k_bounds": f"{_STOPPING}::test_adaptation_moves_within_its_bounds_and_then_rests",
    "distributed.ahead": "scale/test_ray.py::test_training_survives_killed_actors_shards_and_hub",
    "distributed.prefetch": "scale/test_shards.py::test_prefetched_minibatches_equal_single_ones",
    "distributed.max_replacements": f"{_APEX}::test_killed_actor_and_shard_are_replaced_without_double_counts",
}
"""Settings that act on a device, on time or memory alone, or in a rare case, and the test of each."""
_SCENES = ("corpus", "compile")


@pytest.fixture(scope="module")
def walker(tmp_path_factory) -> Walker:
    return Walker(tmp_path_factory.mktemp("walk"))


def names_of(scenario: str) -> list[str]:
    """Return the settings that a scenario walks: those of the scenes, of the distributed learner, or all others.

    The settings that `navi train apex` shares with dqn are walked there.
    """
    if scenario == "learner":
        return [name for name in NAMES if name.startswith("distributed.") or name in LISTED]
    return [name for name in NAMES if (name.split(".")[0] in _SCENES) == (scenario == "scenes")]


def test_listed_settings_have_a_test_each():
    assert len(LISTED) <= 25 and set(LISTED) <= set(NAMES)
    for name, place in LISTED.items():
        file, _, function = place.partition("::")
        tree = ast.parse((Path(__file__).parents[1] / file).read_text())
        body = next(ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function)
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", body), name


def test_the_hash_of_the_pairs_is_part_of_the_run():
    runs = [parse_config(TrainConfig, {"algorithm": "dpo", "dpo": {"pairs_hash": digest}}) for digest in (None, "a")]
    assert config_hash(runs[0]) != config_hash(runs[1])


def test_every_setting_is_read_in_a_scenario(walker):
    """The walk changes each setting where the table has it read; here, that there is such a scenario."""
    read = set(LISTED) | {"profile"}  # warned of on a CPU
    for scenario in SCENARIOS:
        for name in names_of(scenario):
            if walker.reads(scenario, name, parse_config(TrainConfig, walker.together(scenario, name))):
                read.add(name)
    assert sorted(set(NAMES) - read) == []


@pytest.mark.parametrize("name", ["ppo.clip", "ppo.gamma", "ppo.order", "ppo.advantage_exponent", "policy.width"])
def test_a_setting_that_is_read_changes_a_short_run(walker, name):
    assert walker.judge("cart_pole", name) == "acts"


@pytest.mark.parametrize("name", ["grpo.clip", "policy.dueling", "env.max_steps", "policy.encoder", "replay.alpha"])
def test_a_setting_that_is_warned_of_changes_nothing(walker, name):
    assert walker.judge("cart_pole", name) == "warned" and not walker.falsely_warned("cart_pole", name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_setting_acts_or_is_warned_of_or_is_listed(walker, scenario):
    verdicts = {name: walker.judge(scenario, name) for name in names_of(scenario)}
    counts = Counter("listed" if v == "inert" and name in LISTED else v for name, v in verdicts.items())
    print(f"\n{scenario}: {len(verdicts)} settings, {dict(counts)}")  # noqa: T201 (the counts are the result)
    assert not [name for name, verdict in verdicts.items() if verdict == "inert" and name not in LISTED]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_setting_that_is_warned_of_changes_a_run(walker):
    warned = [name for name in names_of("cart_pole") if walker.judge("cart_pole", name) == "warned"]
    assert len(warned) > 100 and not [name for name in warned if walker.falsely_warned("cart_pole", name)]


OTHER_COMMANDS = (EvalConfig, ServeConfig, ActorConfig, EnvironmentConfig, ExplorerConfig, ExpertConfig, NightlyConfig,
                  StudyConfig, SweepConfig, AblationConfig)  # fmt: skip


def test_every_setting_of_other_commands_is_read_and_given_in_a_test():
    """What is no setting of a training: some code reads it, and some test gives it a value."""
    root = Path(__file__).parents[2]
    code = [ast.parse(f.read_text()) for room in ("navi_core", "navi_pipeline") for f in (root / room).rglob("*.py")]
    read = {node.attr for tree in code for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    tests = "\n".join(file.read_text() for file in (root / "tests").rglob("*.py"))
    given = set(re.findall(r"\b(\w+)\"?[=:\]]", tests))
    names = {f"{config.__name__}.{'.'.join(path)}" for config in OTHER_COMMANDS for path in setting_paths(config)}
    assert len(names) > 180 and [name for name in names if name.rpartition(".")[2] not in read & given] == []
