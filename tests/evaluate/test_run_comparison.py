"""Comparison of training runs: pure functions of what the runs recorded."""

import pytest

from navi_core.errors import EvaluationError
from navi_core.evaluate.run_comparison import ComparedRun, compare_runs, flat_settings
from tests.evaluate.conftest import made_result

LOW = [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]
HIGH = [[x + 5 for x in row] for row in LOW]


def run(name, coverage, rate, **changes):
    """A run with a learning rate, a curve and one evaluation."""
    facts = {
        "run_id": f"run-{name}",
        "settings": {"seed": 0, "ppo": {"learning_rate": rate}},
        "curves": {"reward_ema": ([100.0, 200.0], [0.1, 0.2 + rate]), "sps": ([200.0], [50.0])},
        "cost": {"decisions": 200, "cpu_seconds": 4.0, "wall_seconds": None},
        "evaluations": {"course": made_result(name, coverage)},
    }
    return ComparedRun(name=name, **facts | changes)


def test_settings_that_differ_figures_cost_and_curves_are_listed_for_each_run():
    found = compare_runs([run("a", LOW, 0.5), run("b", HIGH, 0.25)])
    assert found["settings"] == [{"setting": "ppo.learning_rate", "values": [0.5, 0.25]}]
    assert {row["metric"]: row["values"] for row in found["figures"]} == {"reward_ema": [0.7, 0.45], "sps": [50, 50]}
    assert [row["values"] for row in found["cost"]] == [[200, 200], [4.0, 4.0], [None, None]]
    assert found["curves"]["reward_ema"]["lines"][1] == {"name": "b", "steps": [100, 200], "values": [0.1, 0.45]}
    assert [each["run_id"] for each in found["runs"]] == ["run-a", "run-b"]


def test_intervals_are_of_later_runs_minus_the_first_on_shared_courses_alone():
    other = run("c", HIGH, 0.5, evaluations={"elsewhere": made_result("c", HIGH)})
    coverage, collisions = compare_runs([run("a", LOW, 0.5), run("b", HIGH, 0.5), other])["intervals"]
    assert (coverage["a"], coverage["b"], coverage["course"]) == ("b", "a", "course")
    assert (coverage["mean_difference"], coverage["better"]) == (5.0, True)
    assert collisions["metric"] == "collisions_per_minute" and not collisions["better"]


def test_course_with_most_episodes_comes_first():
    few, many = [row[:1] for row in LOW], [row * 2 for row in LOW]
    flown = {"few": few, "many": many, "some": LOW}
    sides = [
        run(name, LOW, 0.5, evaluations={course: made_result(name, rows) for course, rows in flown.items()})
        for name in "ab"
    ]
    courses = dict.fromkeys(row["course"] for row in compare_runs(sides)["intervals"])
    assert list(courses) == ["many", "some", "few"]


def test_floor_that_a_limited_sensor_measured_comes_first():
    sides = [made_result(name, flights) for name, flights in (("a", LOW), ("b", HIGH))]
    for row in (row for side in sides for row in side.episodes):
        row["c_seen_auc"] = 2 * row["c_vis_auc"]
    found = compare_runs([run(side.subject, LOW, 0.5, evaluations={"course": side}) for side in sides])["intervals"]
    assert [row["metric"] for row in found] == ["c_seen_auc", "c_vis_auc", "collisions_per_minute"]
    assert found[0]["mean_difference"] == 10.0


def test_one_run_or_the_same_name_twice_is_refused():
    with pytest.raises(EvaluationError, match="navi runs compare A B"):
        compare_runs([run("a", LOW, 0.5)])
    with pytest.raises(EvaluationError, match="a is named twice"):
        compare_runs([run("a", LOW, 0.5), run("a", LOW, 0.5)])


def test_nested_settings_have_dotted_names():
    assert flat_settings({"env": {"reward": {"weights": {"void": 2}}, "task": None}}) == {
        "env.reward.weights.void": 2,
        "env.task": None,
    }
