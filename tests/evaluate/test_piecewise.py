"""Evaluations in pieces are the whole to the bit, and go on where they were stopped."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from navi_core.bench.evaluation import neighbours, time_evaluation
from navi_core.cli.main import build_app
from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate import EvalResult, build_course, compare_seeds, evaluate, evaluate_in_pieces, join_results
from navi_core.evaluate.protocol import _piece_size
from navi_core.evaluate.recording import record_comparison
from tests.evaluate.conftest import made_result

SHORT = EvalConfig(starts=2, max_steps=20, azimuth_bins=32, elevation_bins=8, block=2)


def test_pieces_equal_the_whole_evaluation_and_are_reused(box_room, corridor, tmp_path, monkeypatch):
    loaders = [("box", lambda: box_room), ("corridor", lambda: corridor)]
    subjects, reported = ["forward-plus", "planner"], []
    results = evaluate_in_pieces(subjects, loaders, SHORT, tmp_path, progress=lambda *part: reported.append(part))
    assert reported[-1] == ("planner corridor", 4, 4)
    course = build_course([box_room, corridor], SHORT)
    for name, joined in zip(subjects, results, strict=True):
        whole = evaluate(name, course)
        assert joined.episodes == whole.episodes and joined.evaluation_id == whole.evaluation_id
        same = {key: value for key, value in whole.summary.items() if key not in ("wall_seconds", "coverage_curve")}
        assert {key: joined.summary[key] for key in same} == same
        curve, wanted = (r.summary["coverage_curve"] for r in (joined, whole))
        assert curve["step"] == wanted["step"]
        assert curve["c_vis_percent"] == pytest.approx(wanted["c_vis_percent"], abs=0.002)
    # What is missing is flown, the rest is read.
    (tmp_path / "planner" / "box.json").unlink()
    flown = []
    monkeypatch.setattr("navi_core.evaluate.protocol.evaluate", lambda s, c: flown.append(s) or evaluate(s, c))
    again = evaluate_in_pieces(subjects, loaders, SHORT, tmp_path)
    assert flown == ["planner"] and again[1].episodes == results[1].episodes
    evaluate_in_pieces(["planner"], loaders[:1], SHORT.model_copy(update={"seed": 1}), tmp_path)
    assert flown == ["planner", "planner"]
    monkeypatch.setattr("navi_core.evaluate.protocol.flight_code", lambda: "another")
    evaluate_in_pieces(["planner"], loaders[:1], SHORT, tmp_path)
    assert flown == ["planner"] * 3


@pytest.mark.parametrize(("starts", "scenes", "size"), [(3, 20, 5), (10, 20, 3), (16, 20, 1), (1, 4, 4), (5, 2, 2)])
def test_piece_size_fills_the_blocks(starts, scenes, size):
    assert _piece_size(EvalConfig(starts=starts), scenes) == size


def test_pieces_of_different_evaluations_cannot_be_joined():
    a, b = made_result("a", [[1.0]], scenes=("x",)), made_result("b", [[1.0]], scenes=("y",))
    with pytest.raises(EvaluationError, match="different subjects"):
        join_results([a, b])
    with pytest.raises(EvaluationError, match="two parts"):
        join_results([a, a])


def test_the_curve_of_the_whole_weighs_pieces_by_their_scenes():
    parts = made_result("p", [[1.0], [1.0]], scenes=("x", "y")), made_result("p", [[1.0]], scenes=("z",))
    for part, curve in zip(parts, ([0.0, 10.0], [3.0, 40.0]), strict=True):
        part.summary["coverage_curve"] = {"step": [0, 5], "c_vis_percent": curve}
    assert join_results(parts).summary["coverage_curve"] == {"step": [0, 5], "c_vis_percent": [1.0, 20.0]}


def test_neighbouring_baselines_are_compared():
    levels = {"random": 10.0, "planner": 40.0, "forward-plus": 20.0, "wall-following": 15.0}
    results = [made_result(name, [[v, v + 1], [v, v + 2], [v, v]]) for name, v in levels.items()]
    assert [(c.a, c.b, c.better) for c in neighbours(results)] == [
        ("planner", "forward-plus", True),
        ("forward-plus", "random", True),
    ]


def test_baselines_command_flies_and_compares_pilots(tmp_path):
    command = ["bench", "baselines", "--pilot", "random", "--pilot", "forward-plus", "--scene", "apartment:9003",
               "--starts", "2", "--steps", "10", "--resolution", "64", "--out", str(tmp_path), "--json",
               "--height-limit", "2"]  # fmt: skip
    done = CliRunner().invoke(build_app(), command)
    assert done.exit_code == 0, done.output
    assert EvalResult.load(tmp_path / "random.json").config.dynamics.height_limit == 2.0
    document = json.loads(done.stdout)
    assert [(c["a"], c["b"]) for c in document["comparisons"]] == [("forward-plus", "random")]
    assert (tmp_path / "random.json").is_file() and (tmp_path / "random" / "apartment_9003.json").is_file()


def test_an_evaluation_is_timed_with_its_measures(box_room):
    (row,) = time_evaluation([box_room], ["ring_cnn+gru"], azimuth=32, elevation=8, steps=4, repeats=1)
    assert (row["drones"], row["simulated_seconds"]) == (16, pytest.approx(6.4)) and row["per_cpu_second"] > 0


def test_a_comparison_of_seeds_keeps_profiles_and_matrices(tmp_path):
    scenes = ("s1", "s2")
    sides = [
        [made_result(f"{name}{seed}", [[base + seed], [base + 2 * seed]], scenes=scenes, weights=f"{name}{seed}")
         for seed in range(5)]
        for name, base in (("a", 50.0), ("b", 30.0))
    ]  # fmt: skip
    verdict = compare_seeds(*sides, names=("new", "old"))
    first = record_comparison(verdict, *sides, outbox=tmp_path)
    assert first == record_comparison(verdict, *sides, outbox=tmp_path)
    row = json.loads(next(tmp_path.glob("*comparisons*.ndjson")).read_text().splitlines()[1])
    assert row["matrices"]["a"][2] == [52.0, 54.0] and row["matrices"]["scenes"] == ["s1", "s2"]
    assert row["better"] and row["over"] == "seeds and scenes" and len(row["profiles"]["profile_a"]) == 21
    assert row["evaluations"]["a"] == [result.evaluation_id for result in sides[0]]
