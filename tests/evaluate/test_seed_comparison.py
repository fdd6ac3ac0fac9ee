"""Intervals over training seeds and scenes: known answers, coverage in simulation, and the conditions of a verdict."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from navi_core.bench.evaluation import SPREADS, interval_world, simulate_interval
from navi_core.cli.compare import two_sides
from navi_core.cli.main import build_app
from navi_core.errors import ConfigError, EvaluationError
from navi_core.evaluate import (
    bootstrap_interval,
    compare_seeds,
    holm,
    performance_profile,
    seed_matrix,
    two_way_interval,
)
from tests.evaluate.conftest import made_result

SCENES = ("a", "b", "c", "d")


def side(name, seeds, gain=0.0, *, scenes=SCENES, **changes):
    """One result per seed: 3·seed + 10·scene + gain and a wobble that belongs to seed and scene, at two starts."""
    results = []
    for seed in range(seeds):
        rows = [[3.0 * seed + 10.0 * j + gain + 0.1 * ((seed + j) % 2) * bool(gain)] * 2 for j in range(len(scenes))]
        results.append(made_result(f"{name}{seed}", rows, scenes=scenes, weights=f"{name}{seed}", **changes))
    return results


def test_the_two_way_interval_by_hand():
    """[[1, 2], [4, 9]]: MS_seed 25, MS_scene 9, MS_error 4, so the mean's variance is 30 / 4."""
    interval = two_way_interval([[1.0, 2.0], [4.0, 9.0]])
    assert (interval.mean, interval.seeds, interval.scenes) == (4.0, 2, 2)
    assert interval.standard_error == pytest.approx(np.sqrt(30 / 4))
    assert interval.degrees_of_freedom == pytest.approx(30**2 / (25**2 + 9**2 + 4**2))
    assert interval.high - 4.0 == pytest.approx(4.0 - interval.low)


def test_one_factor_interval_equals_its_t_interval():
    """Scenes that differ in nothing: five seeds of 1..5 have the t interval 3 ± 2.776·√0.5, of 4 degrees of freedom."""
    values = np.repeat(np.arange(1.0, 6.0)[:, None], 6, axis=1)
    for matrix in (values, values.T):
        interval = two_way_interval(matrix)
        assert interval.degrees_of_freedom == pytest.approx(4)
        assert interval.high == pytest.approx(3 + 2.7764451 * np.sqrt(0.5), abs=1e-5)


def test_a_constant_matrix_has_an_interval_of_no_width():
    interval = two_way_interval(np.full((5, 3), 2.0))
    assert (interval.low, interval.mean, interval.high) == (2.0, 2.0, 2.0)


def test_the_interval_covers_the_truth_92_to_99_percent_from_five_seeds_on():
    for row in simulate_interval([(5, 6), (5, 20), (8, 20)], SPREADS[:4], worlds=600):
        # 600 worlds estimate the share to ±1.8 points.
        assert 0.92 <= row["covered"] <= 0.99, row


def test_a_bootstrap_of_scenes_alone_covers_far_less():
    generator, covered = np.random.default_rng(0), 0
    for world in range(100):
        values = interval_world(generator, 5, 20, (1.0, 1.0, 1.0))
        interval = bootstrap_interval({str(i): list(row) for i, row in enumerate(values.T)}, seed=world, resamples=300)
        covered += interval.low <= 0.0 <= interval.high
    assert covered < 80


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((1, 5)), "two of each and has 1 and 5"),
        (np.ones((5, 1)), "two of each and has 5 and 1"),
        (np.ones(5), "no matrix"),
        ([[1.0, np.nan], [1.0, 1.0]], "1 of 4 values are not finite"),
    ],
)
def test_matrices_without_an_interval_are_refused(matrix, words):
    with pytest.raises(EvaluationError, match=words):
        two_way_interval(matrix)


def test_the_profile_is_the_share_above_each_threshold():
    assert performance_profile([[1.0, 2.0], [3.0, 4.0]], [0.0, 1.0, 2.5, 4.0]) == [1.0, 0.75, 0.5, 0.0]


def test_the_matrix_has_a_row_per_seed_and_a_column_per_scene():
    assert seed_matrix(side("a", 3), "c_vis_auc").tolist() == [[3.0 * i + 10.0 * j for j in range(4)] for i in range(3)]


def test_seeds_are_paired_and_a_verdict_needs_five():
    verdict = compare_seeds(side("a", 5, 4.0), side("b", 5))
    assert verdict.better and not verdict.worse and verdict.low > 0 and verdict.seeds == 5
    assert verdict.mean_difference == pytest.approx(4.05)
    assert verdict.sentence.startswith("a0 is better than b0 in c_vis_auc: 25.05 against 21.00, difference +4.05 [")
    assert compare_seeds(side("b", 5), side("a", 5, 4.0)).worse
    assert compare_seeds(side("a", 5), side("b", 5)).sentence.startswith("no difference between a0 and b0")


def test_scenes_are_paired_by_name():
    one = [made_result(f"a{i}", [[10.0 + i], [50.0 - i]], scenes=("x", "y"), weights=f"a{i}") for i in range(2)]
    other = [made_result(f"b{i}", [[50.0 - i], [10.0 + i]], scenes=("y", "x"), weights=f"b{i}") for i in range(2)]
    verdict = compare_seeds(one, other)
    assert (verdict.low, verdict.mean_difference, verdict.high) == (0.0, 0.0, 0.0)
    assert (verdict.thresholds[0], verdict.thresholds[-1]) == (10.0, 50.0)
    assert (verdict.profile_a[0], verdict.profile_a[-1]) == (0.75, 0.0) and verdict.profile_a == verdict.profile_b


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_too_few_seeds_give_no_verdict(seeds):
    verdict = compare_seeds(side("a", seeds, 4.0), side("b", seeds))
    assert verdict.low > 0 and not verdict.better and not verdict.worse
    assert verdict.sentence.startswith(f"no verdict on a0 and b0 in c_vis_auc, which needs 5 seeds and has {seeds}: ")
    assert "better" not in verdict.sentence and "worse" not in verdict.sentence


def test_pilot_against_seeds_uses_the_seed_variance_of_one_side():
    pilot = made_result("pilot", [[10.0 * j] * 2 for j in range(4)], scenes=SCENES)
    verdict = compare_seeds(side("a", 5), [pilot])
    assert verdict.mean_difference == pytest.approx(6.0) and verdict.seeds == 5
    assert verdict.high == pytest.approx(6.0 + 2.7764451 * 3 * np.sqrt(0.5), abs=1e-4)
    assert compare_seeds([pilot], side("a", 5)).mean_difference == pytest.approx(-6.0)


def test_fewer_collisions_are_better_over_seeds_too():
    few = [
        made_result(f"a{i}", [[1.0] * 2] * 4, [[0.0, 0.1 * i]] * 4, scenes=SCENES, weights=f"a{i}") for i in range(5)
    ]
    many = [made_result(f"b{i}", [[1.0] * 2] * 4, [[9.0, 9.0]] * 4, scenes=SCENES, weights=f"b{i}") for i in range(5)]
    assert compare_seeds(few, many, "collisions_per_minute").better


def test_unpaired_sides_are_refused():
    with pytest.raises(EvaluationError, match="5 checkpoints cannot be paired with 3"):
        compare_seeds(side("a", 5), side("b", 3))
    with pytest.raises(EvaluationError, match="a0 and a0 have the same weights"):
        compare_seeds([side("a", 1)[0]] * 2, side("b", 2))
    with pytest.raises(EvaluationError, match="pilot has no weights"):
        compare_seeds(side("a", 2), [made_result("pilot", [[1.0]] * 4, scenes=SCENES)] * 2)
    with pytest.raises(EvaluationError, match="flew different starts"):
        compare_seeds(side("a", 2), side("b", 2, start_x=9.0))


def test_checkpoints_of_one_run_are_refused_as_seeds():
    mine = side("a", 5)
    for number, result in enumerate(mine):
        result.summary["training_run_id"] = f"run{number % 4}"
    with pytest.raises(EvaluationError, match=r"a4 and a0 are checkpoints of one run \(run0\), not two seeds"):
        compare_seeds(mine, side("b", 5))


def test_one_checkpoint_is_not_a_training_method():
    verdict = compare_seeds(side("a", 1, 4.0), side("b", 5))
    assert verdict.sentence.endswith(" over 5 seeds and 4 scenes. a0 is one checkpoint, not a training method.")
    pilot = made_result("pilot", [[1.0] * 2] * 4, scenes=SCENES)
    assert "one checkpoint" not in compare_seeds([pilot], side("b", 5)).sentence


def test_side_trained_on_the_scenes_gets_no_verdict():
    known = side("a", 5, 8.0)
    known[3].summary["scenes_trained_on"] = 1
    verdict = compare_seeds(known, side("b", 5))
    assert verdict.low > 0 and not verdict.better and "because a3 was trained on 1 of these scenes" in verdict.sentence


def test_the_p_value_belongs_to_the_interval():
    """At 1 − p the interval just touches 0."""
    matrix = np.random.default_rng(0).normal(0.4, 1.0, size=(5, 8))
    interval = two_way_interval(matrix)
    touching = two_way_interval(matrix, confidence=1.0 - interval.p_value)
    assert touching.low == pytest.approx(0.0, abs=1e-9)
    assert two_way_interval(np.ones((3, 3))).p_value == 0 and two_way_interval(np.zeros((3, 3))).p_value == 1


def test_holm_by_hand():
    """.01 < .05/4 and .015 < .05/3, but .03 ≥ .05/2; then .04 is not asked any more."""
    assert holm([0.03, 0.01, 0.04, 0.015]) == [False, True, False, True]
    assert holm([0.049]) == [True] and holm([]) == [] and holm([0.05]) == [False]
    with pytest.raises(EvaluationError, match="within"):
        holm([0.5, 1.5])


def test_withheld_verdict_keeps_its_numbers():
    printed = compare_seeds(side("a", 5, 4.0), side("b", 5))
    silent = printed.withheld("it may be chance")
    assert printed.better and not silent.better and silent.low == printed.low
    assert silent.sentence == printed.sentence.replace(
        "a0 is better than b0 in c_vis_auc", "no verdict on a0 and b0 in c_vis_auc, it may be chance"
    )


def test_compare_command_pairs_seed_files(tmp_path):
    names = {
        name: [str(result.save(tmp_path / f"{result.subject}.json")) for result in side(name, 5, gain)]
        for name, gain in (("a", 4.0), ("b", 0.0))
    }
    command = ["compare", *names["a"], "vs", *names["b"], "--metric", "c_vis_auc"]
    done = CliRunner().invoke(build_app(), command)
    assert done.exit_code == 0, done.output
    last = done.output.strip().splitlines()[-1]
    assert f"{tmp_path}/a*.json is better than {tmp_path}/b*.json in c_vis_auc" in last
    assert last.endswith("over 5 seeds and 4 scenes.")


def test_compare_command_separates_sides_by_a_keyword():
    assert two_sides(["x", "y"]) == (["x"], ["y"])
    assert two_sides(["x", "y", "vs", "z"]) == (["x", "y"], ["z"])
    with pytest.raises(ConfigError, match="navi compare x forward-plus"):
        two_sides(["x"])
    for wrong in (["x", "y", "z"], ["vs", "x"], ["x", "vs", "y", "vs", "z"]):
        with pytest.raises(ConfigError, match="vs"):
            two_sides(wrong)


def test_comparison_without_results_is_refused():
    with pytest.raises(EvaluationError, match="no results"):
        compare_seeds([], [])
