"""Paired comparison and promotion: hand-made results with known differences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from navi_core.config import DynamicsConfig, EvalConfig
from navi_core.config.evaluate import NOISY_SENSOR
from navi_core.errors import EvaluationError
from navi_core.evaluate import compare, decide, flight_code, seed_matrix
from navi_core.evaluate.comparison import paired_differences, verdict_of
from navi_core.evaluate.promotion import confirming, decide_and_confirm
from navi_core.evaluate.result import direction, summarise
from tests.evaluate.conftest import made_result as result

LOW = [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]
HIGH = [[x + 5 for x in row] for row in LOW]


def test_constant_gain_is_better_despite_scene_differences():
    verdict = compare(result("new", HIGH), result("old", LOW))
    assert (verdict.mean_difference, verdict.low, verdict.high) == (5.0, 5.0, 5.0)
    assert verdict.better and not verdict.worse
    assert verdict.sentence == (
        "new is better than old in c_vis_auc: 40.00 against 35.00, difference +5.00 [+5.00, +5.00] "
        "over 3 scenes and 6 starts."
    )
    back = compare(result("old", LOW), result("new", HIGH))
    assert back.worse and not back.better and "old is worse than new" in back.sentence


def test_no_difference_is_shown_while_the_interval_holds_zero():
    mixed = [[15.0, 15.0], [35.0, 35.0], [40.0, 62.0]]
    verdict = compare(result("new", mixed), result("old", LOW))
    assert verdict.low <= 0 <= verdict.high
    assert not verdict.better and not verdict.worse
    assert verdict.sentence.startswith("no difference between new and old in c_vis_auc is shown")
    same = compare(result("new", LOW), result("old", LOW))
    assert not same.better and same.mean_difference == 0


def test_differences_are_those_of_each_start():
    a, b = (result(n, v, scenes=("s", "t")) for n, v in (("a", [[1, 4], [2, 2]]), ("b", [[2, 1], [0, 5]])))
    assert paired_differences(a, b, "c_vis_auc") == {"s": [-1.0, 3.0], "t": [2.0, -3.0]}


def test_fewer_collisions_are_better():
    many = [[9.0, 8.0], [7.0, 9.0], [8.0, 8.0]]
    few = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert compare(result("a", LOW, few), result("b", LOW, many), "collisions_per_minute").better
    assert compare(result("a", LOW, many), result("b", LOW, few), "collisions_per_minute").worse


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (result("b", LOW, start_x=9.0), "start_x of scene a, start 0"),
        (result("b", LOW, scenes=("a", "b", "d")), "scene c"),
        (result("b", [[1.0], [1.0], [1.0]]), "start 1"),
        (result("b", LOW, scene_hash="other"), "scene_hash"),
        (result("b", LOW, max_steps=100), "max_steps"),
        (result("b", LOW, decision_hz=5.0), "decision_hz"),
        (result("b", LOW, view_radius=5.0), "view_radius"),
        (result("b", LOW, floor_cell=0.2), "floor_cell"),
        (result("b", LOW, goal_x=1.0), "goal_x"),
    ],
)
def test_other_starts_are_refused(other, words):
    with pytest.raises(EvaluationError, match="flew different starts") as caught:
        compare(result("a", LOW), other)
    assert words in str(caught.value)


def test_metrics_without_values_are_refused_by_name():
    with pytest.raises(EvaluationError, match="no metric 'coverage'"):
        compare(result("a", LOW), result("b", LOW), "coverage")
    with pytest.raises(EvaluationError, match="c_vis_steps_to_90 has no value in scene a, start 0"):
        compare(result("a", LOW), result("b", LOW), "c_vis_steps_to_90")


def decided(challenger, opponent, previous="v001"):
    return decide("v002", challenger, opponent, previous_version=previous)


def test_better_and_equally_safe_challenger_is_promoted():
    decision = decided(result("v002", HIGH), result("v001", LOW))
    assert decision.promoted and decision.reason.startswith("Promoted: v002 is better than v001")
    assert decision.reason.endswith("0 of 6 flights collided (95 % upper bound: 39 %).")  # 1 − 0.05^(1/6)
    some = result("v002", HIGH)
    some.episodes[0]["collision_free"] = False
    assert decided(some, result("v001", LOW)).reason.endswith("1 of 6 flights collided.")
    row = decision.to_row()
    assert (row["alias"], row["version"], row["previous_version"], row["promoted"]) == (
        "champion",
        "v002",
        "v001",
        True,
    )
    assert [row[name] for name in ("mean_difference", "low", "high")] == pytest.approx([0.05] * 3)
    assert row["decided_at"].endswith("+00:00")


def test_an_equal_challenger_stays_a_candidate():
    decision = decided(result("v002", LOW), result("v001", LOW))
    assert not decision.promoted and decision.reason.startswith("Refused, not shown to be better")


def test_a_challenger_that_collides_more_is_refused():
    rising = [[4.0, 5.0], [4.0, 4.0], [5.0, 4.0]]
    decision = decided(result("v002", HIGH, rising), result("v001", LOW))
    assert not decision.promoted and decision.reason.startswith("Refused, it collides more")


def test_large_collision_rise_in_the_interval_blocks_promotion():
    """One bad episode of six: the interval holds 0, yet 6 a minute are refused and 2 are accepted."""
    for events, promoted in ((36.0, False), (2.0, True)):
        one = [[events, 0.0], [0.0, 0.0], [0.0, 0.0]]
        decision = decided(result("v002", HIGH, one), result("v001", LOW))
        assert not decision.collisions.worse
        assert decision.promoted is promoted


def test_each_version_is_confirmed_on_separate_starts():
    config = EvalConfig(seed=7)
    seeds = [confirming(config, version).seed for version in ("v003", "v004", "v104")]
    assert seeds == [1_000_010, 1_000_011, 1_000_111]
    assert confirming(config, "v003") == config.model_copy(update={"seed": seeds[0]})
    assert 0 <= confirming(EvalConfig(seed=2**31 - 1), "v001").seed < 2**31


def test_a_first_champion_must_beat_random():
    assert decided(result("v001", HIGH), result("random", LOW), previous=None).promoted
    assert not decided(result("v001", LOW), result("random", LOW), previous=None).promoted
    with pytest.raises(EvaluationError, match="against the pilot 'random'"):
        decided(result("v001", HIGH), result("forward-plus", LOW), previous=None)


def test_summary_holds_mean_and_median_of_collisions():
    """One stuck episode of six: the means are six and ten, the medians 0."""
    stuck = result("stuck", LOW, [[36.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    for i, row in enumerate(stuck.episodes):
        row["collisions_per_100m"] = 60.0 if i == 0 else 0.0
    summary = summarise("stuck", stuck.config, stuck.episodes, {})
    assert (summary["collisions_per_minute"], summary["collisions_per_minute_median"]) == (6.0, 0.0)
    assert (summary["collisions_per_100m"], summary["collisions_per_100m_median"]) == (10.0, 0.0)


@pytest.mark.parametrize(
    ("steps", "median"), [([1, 2, 3, 4, None, None], 4.0), ([3, 2, 1, None, None, None], None), ([5] * 6, 5.0)]
)
def test_median_steps_need_half_of_the_episodes_at_the_share(steps, median):
    made = result("a", LOW)
    for row, reached in zip(made.episodes, steps, strict=True):
        row["c_vis_steps_to_90"] = reached
    assert summarise("a", made.config, made.episodes, {})["c_vis_steps_to_90_median"] == median


def test_too_few_starts_give_no_verdict():
    """One flight has an interval of no width, and all of five fall on one side by chance in 6 % of the cases."""
    for few in ([[40.0]], [[40.0, 41.0], [39.0], [40.0, 42.0]]):
        scenes = tuple("abc"[: len(few)])
        better, worse = (
            result(name, [[v - d for v in row] for row in few], scenes=scenes) for name, d in (("a", 0), ("b", 9))
        )
        verdict = compare(better, worse)
        assert verdict.mean_difference == 9.0 and not verdict.better and not verdict.worse
        assert (verdict.to_row()["low"] is None) == (len(few) == 1)
        assert np.isnan(verdict.low) if len(few) == 1 else verdict.low == 9.0
        assert verdict.sentence.startswith("no verdict on a and b in c_vis_auc, which needs 6 starts")


@pytest.mark.parametrize(
    ("metric", "task", "side"),
    [
        ("c_vis_auc", "explore", 1),
        ("c_surf_at_100", "explore", 1),
        ("c_vis_auc", "point_goal", 0),
        ("c_visit", "explore", 1),
        ("c_vis_steps_to_90", "explore", -1),
        ("success", "point_goal", 1),
        ("goal_distance", "point_goal", -1),
        ("collisions_per_minute", "point_goal", -1),
        ("recovery_steps", "explore", -1),
        ("path_length", "explore", 0),
        ("steps", "point_goal", 0),
        ("start_x", "explore", 0),
    ],
)
def test_direction_of_each_metric(metric, task, side):
    assert direction(metric, task) == side


def test_metric_without_direction_gives_no_verdict():
    longer, shorter = result("a", LOW, path_length=9.0), result("b", LOW, path_length=4.0)
    verdict = compare(longer, shorter, "path_length")
    assert not verdict.better and not verdict.worse and verdict.mean_difference == 5.0
    assert verdict.sentence.startswith("no verdict on a and b in path_length, a metric without a better direction:")


@pytest.mark.parametrize("metric", ["c_vis_auc", "collisions_per_minute"])
def test_interval_that_touches_zero_gives_no_verdict(metric):
    sides = (result("a", LOW),), (result("b", LOW),)
    for low, high in ((0.0, 2.0), (-2.0, 0.0)):
        assert verdict_of(*sides, metric, low, high) == (False, False, "")


def test_winner_is_confirmed_under_its_own_protocol():
    """Both sides fly again as the challenger did, here with recovery."""
    challenger, asked = under({"recovery": True}, "v002", HIGH), []

    def fly_again(config):
        asked.append(config)
        return challenger, result("v001", LOW)

    decision, flights = decide_and_confirm(
        "v002", (challenger, result("v001", LOW)), fly_again, previous_version="v001"
    )
    assert decision.promoted and len(flights) == 2
    assert asked == [confirming(challenger.config, "v002")]


def test_equal_pairs_report_an_upper_bound():
    printed = compare(result("a", LOW), result("b", LOW), "collisions_per_minute").sentence
    assert "all pairs are equal (95 % upper bound of unequal scenes: 63 %) over 3 scenes" in printed  # 1 − .05^(1/3)


def test_side_trained_on_the_scenes_gets_no_verdict():
    known, fresh = result("known", HIGH), result("fresh", LOW)
    known.summary["scenes_trained_on"] = 2
    for verdict in (compare(known, fresh), compare(fresh, known)):
        assert not verdict.better and not verdict.worse
        assert "in c_vis_auc, because known was trained on 2 of these scenes: " in verdict.sentence
    fresh.summary["scenes_trained_on"], known.summary["scenes_trained_on"] = 2, 0
    assert compare(known, fresh).better  # although the other had the advantage


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"visit_cell": 0.25}, "visit_cell is 0.5 and 0.25"),
        ({"clearance_margin": 0.0}, "clearance_margin is 0.05 and 0.0"),
        ({"dynamics": DynamicsConfig(max_yaw_rate=1.0)}, "dynamics is"),
        ({"task": "point_goal"}, "task is explore and point_goal"),
    ],
)
def test_different_rules_cannot_be_paired(changes, words):
    with pytest.raises(EvaluationError, match="flew by different rules") as caught:
        compare(result("a", LOW), under(changes, "b"))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sensor": NOISY_SENSOR}, "sensor clean against sensor noisy"),
        ({"deterministic": False}, "mean actions against sampled actions"),
        ({"recovery": True}, "recovery as trained against recovery"),
    ],
)
def test_permitted_protocol_differences_are_named(changes, words):
    assert compare(result("a", HIGH), under(changes, "b")).sentence.endswith(f" Protocols differ: {words}.")
    with pytest.raises(EvaluationError, match="seeds of one side, but their protocols differ"):
        seed_matrix([result("a", LOW), under(changes, "b")], "c_vis_auc")


def test_different_code_versions_are_named():
    old, new = result("a", HIGH), result("b", LOW)
    assert old.summary["flight_code"] == flight_code()
    old.summary["flight_code"] = "0" * 12
    assert compare(old, new).sentence.endswith(" Flown by different versions of Navi's code.")
    del old.summary["flight_code"]  # of before it was kept: not of the code that keeps it
    assert compare(old, new).sentence.endswith(" Flown by different versions of Navi's code.")
    del new.summary["flight_code"]
    assert "code" not in compare(old, new).sentence


def under(changes, subject, coverage=LOW):
    """A result, flown under other settings."""
    made = result(subject, coverage)
    return dataclasses.replace(made, config=made.config.model_copy(update=changes))


def test_equal_boolean_differences_in_few_scenes_give_no_verdict():
    won, lost = ([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    verdict = compare(*(result(n, v, scenes=("a", "b")) for n, v in (("a", won), ("b", lost))))
    assert verdict.low == verdict.high > 0 and not verdict.better
    assert "because all of so few scenes differ by the same number of flights" in verdict.sentence


def test_collision_check_uses_the_narrower_interval():
    """Three scenes that rise by 0.2 to 1.6 a minute: Student's interval holds 0, the bootstrap's does not."""
    rising = [[0.2, 0.2], [0.9, 0.9], [1.6, 1.6]]
    decision = decided(result("v002", HIGH, rising), result("v001", LOW))
    assert decision.collisions.low < 0 and decision.collisions.mean_difference < 1.0 and not decision.promoted
