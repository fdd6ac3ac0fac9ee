"""From registry to decision to rows: promotion on real scenes, records in the outbox, maps, the command line."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli import evaluate as evaluate_command
from navi_core.cli.main import build_app
from navi_core.config import EnvConfig, EvalConfig, PolicyConfig, TrainConfig
from navi_core.errors import EvaluationError, RecordError, RegistryError
from navi_core.evaluate import (
    build_course,
    confirmed,
    confirming,
    decide,
    evaluate,
    promote,
    record_evaluation,
    top_down_map,
)
from navi_core.models import Checkpoint, Registry, save_checkpoint
from navi_core.policy import build_policy
from navi_core.record import navi_home, outbox_path

SHORT = EvalConfig(starts=2, max_steps=40, azimuth_bins=32, elevation_bins=8, block=4)
SIX = SHORT.model_copy(update={"starts": 6})


def flying(command, path, *, scene_hashes=None):
    """A checkpoint whose mean action is one command, whatever it sees."""
    network = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=32, elevation_bins=8)
    policy = build_policy(network)
    with torch.no_grad():
        last = next(layer for layer in reversed(list(policy.heads.actor)) if hasattr(layer, "weight"))
        last.weight.zero_()
        last.bias.copy_(torch.atanh(torch.tensor(command, dtype=torch.float32)))
    return save_checkpoint(
        path,
        Checkpoint.of(
            policy=policy,
            optimizer=None,
            config=TrainConfig(env=EnvConfig(azimuth_bins=32, elevation_bins=8), policy=network),
            step_id=1,
            episode_count=1,
            reward_ema=0.0,
            run_id="test-run",
            wall_time_hours=0.0,
            scene_hashes=scene_hashes or {},
        ),
    )


HOVER, CIRCLE, CRASH = [0.0, 0.0, 0.0, 0.0], [0.01, 0.0, 0.0, 0.12], [0.25, 0.0, 0.0, 0.12]
"""Stays where it is; circles slowly and sees a little more; flies wide circles into the walls."""


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "models")


def test_champions_change_only_by_beating_their_predecessor(halls, registry, tmp_path):
    course = build_course(halls, SIX)
    hovers = registry.register(flying(HOVER, tmp_path / "hover.pt"))
    circles = registry.register(flying(CIRCLE, tmp_path / "circle.pt"))
    crashes = registry.register(flying(CRASH, tmp_path / "crash.pt"))

    first, [(_, opponent)] = promote(hovers, registry, course)
    assert not first.promoted and opponent.subject == "random" and first.previous_version is None
    assert "champion" not in registry.aliases()
    registry.promote(hovers, "champion")

    dangerous, [(challenger, opponent)] = promote(crashes, registry, course)
    assert (challenger.subject, opponent.subject) == (crashes, hovers)
    assert dangerous.coverage.better and dangerous.collisions.worse and not dangerous.promoted
    assert registry.resolve("champion").version == hovers

    better, flights = promote(circles, registry, course)
    assert better.promoted and better.previous_version == hovers
    poses = [{(row["scene"], row["start_x"], row["start_z"]) for row in flown.episodes} for flown, _ in flights]
    assert len(poses) == 2 and len(poses[0] & poses[1]) < 3
    assert [flown.summary.get("confirms", False) for pair in flights for flown in pair] == [False, False, True, True]
    assert better.evaluation_id == flights[1][0].evaluation_id and "Confirmed on other starts" in better.reason
    assert registry.resolve("champion").version == circles
    card = (registry.path / f"{circles}.md").read_text()
    assert f"# Model card of {circles}" in card and "Apache-2.0" in card and better.reason in card
    assert "flights without a collision" in card and "| C_vis AUC (%) | " in card
    assert all(f"## {title}" in card for title in ("Scenes", "Scores", "Failures", "Limits", "Licence"))
    assert not (registry.path / f"{crashes}.md").exists()

    with pytest.raises(EvaluationError, match="is the champion already"):
        promote("champion", registry, course)
    with pytest.raises(RegistryError, match="v009"):
        promote("v009", registry, course)


def test_unconfirmed_win_is_refused(halls, tmp_path):
    course = build_course(halls, SIX)
    circles, hovers = (evaluate(flying(c, tmp_path / f"{n}.pt"), course) for n, c in enumerate((CIRCLE, HOVER)))
    won, lost = (decide("v002", *pair, previous_version="v001") for pair in ((circles, hovers), (hovers, hovers)))
    refused = confirmed(won, lost)
    assert won.promoted and not refused.promoted and refused.coverage == lost.coverage
    assert refused.reason.startswith(
        f"Refused, its lead ({won.coverage.mean_difference:+.2f} on the first starts) is not"
    )
    assert confirming(SHORT, "v007").seed == 1_000_007 and confirming(SHORT, "v007").starts == SHORT.starts


def test_promotion_needs_two_scenes(corridor, tmp_path):
    course = build_course([corridor], SHORT.model_copy(update={"starts": 8}))
    circles, hovers = (evaluate(flying(c, tmp_path / f"{n}.pt"), course) for n, c in enumerate((CIRCLE, HOVER)))
    refused = decide("v002", circles, hovers, previous_version="v001")
    assert refused.coverage.better and refused.coverage.sentence.endswith("over 8 starts of corridor alone.")
    assert not refused.promoted and refused.reason.startswith("Refused, 1 scene is too few")


def test_promote_command_records_the_alias_move(halls, tmp_path):
    registry = Registry(navi_home() / "models")
    hovers, circles = (registry.register(flying(c, tmp_path / f"{n}.pt")) for n, c in enumerate((HOVER, CIRCLE)))
    registry.promote(hovers, "champion")
    scenes = [str(scene.save(tmp_path / f"{scene.name}.gmdag")) for scene in halls]
    given = [word for scene in scenes for word in ("--scene", scene)]
    command = ["promote", circles, *given, "--starts", "6", "--steps", "40", "--no-record"]
    done = CliRunner().invoke(build_app(plugins=False), command)
    assert done.exit_code == 0, (done.output, done.exception)
    batches = sorted(outbox_path().glob("*alias_moves*.ndjson"))
    rows = [json.loads(line) for batch in batches for line in batch.read_text().splitlines()]
    assert {row["version"] for row in rows if row.get("alias") == "champion"} == {hovers, circles}


def test_a_promotion_is_recorded_before_the_alias_moves(halls, registry, tmp_path, monkeypatch):
    """A champion cannot be decided again: killed behind the move, its row would be missing for good."""
    course = build_course(halls, SHORT)
    checkpoints = [flying(c, tmp_path / f"{n}.pt") for n, c in enumerate((HOVER, CIRCLE, CRASH))]
    hovers, circles, third = (registry.register(checkpoint) for checkpoint in checkpoints)
    registry.promote(hovers, "champion")
    pair = evaluate(checkpoints[1], course), evaluate(checkpoints[0], course)
    won = replace(decide(circles, *pair, previous_version=hovers), promoted=True)
    monkeypatch.setattr("navi_core.evaluate.promotion.decide_and_confirm", lambda *a, **k: (won, [pair]))
    reported = []

    def record(decision, flights):
        reported.append((decision.promoted, decision.decided_at, registry.resolve("champion").version))
        if len(reported) == 1:
            raise KeyboardInterrupt
        if len(reported) == 3:
            registry.promote(third, "champion")

    flown = {"challenger": pair[0], "opponent": pair[1], "record": record}
    with pytest.raises(KeyboardInterrupt):
        promote(circles, registry, course, **flown)
    promote(circles, registry, course, **flown)
    assert [(row[0], row[2]) for row in reported] == [(True, hovers)] * 2
    assert registry.resolve("champion").version == circles
    registry.rollback("champion")
    # Another version gets the alias between the row and the move: the same row records it.
    with pytest.raises(RegistryError, match="holds it by now"):
        promote(circles, registry, course, **flown)
    assert [row[:2] for row in reported[2:]] == [(True, won.decided_at), (False, won.decided_at)]


def test_promotion_refuses_training_scenes_before_any_flight(halls, registry, tmp_path, monkeypatch):
    course, flown = build_course(halls, SHORT), evaluate("random", halls, SHORT)
    monkeypatch.setattr("navi_core.evaluate.promotion.evaluate", lambda *_: pytest.fail("it flew"))
    known = flying(HOVER, tmp_path / "known.pt", scene_hashes={"a": halls[0].content_hash(), "b": "mesh"})
    seen = registry.register(known)
    for scenes in (halls, course, halls[:1], [replace(halls[1], source_hash="mesh"), halls[2]]):
        with pytest.raises(EvaluationError, match=r"trained on 1 \(hall[01]\) of these scenes; promote on scenes"):
            promote(seen, registry, scenes, SHORT)
    fresh = registry.register(flying(CIRCLE, tmp_path / "fresh.pt"))
    with pytest.raises(EvaluationError, match="needs 2 scenes or more and has 1; name more"):
        promote(fresh, registry, halls[:1], SHORT)
    # A result flown elsewhere is checked by its own summary.
    flown.summary["scenes_trained_on"] = 3
    with pytest.raises(EvaluationError, match="trained on 3 of these scenes"):
        promote(fresh, registry, halls, SHORT, challenger=flown)


def test_challenger_trained_on_the_scenes_is_not_promoted(halls, tmp_path):
    """The pipeline calls `decide` without `promote`."""
    course = build_course(halls, SIX)
    circles, hovers = (evaluate(flying(c, tmp_path / f"{n}.pt"), course) for n, c in enumerate((CIRCLE, HOVER)))
    assert decide("v002", circles, hovers, previous_version="v001").promoted
    circles.summary["scenes_trained_on"] = 1
    refused = decide("v002", circles, hovers, previous_version="v001")
    assert not refused.promoted and refused.reason == "Refused, v002 was trained on 1 of these scenes"


def test_promotion_refuses_training_scenes_of_an_ancestor(halls, registry, tmp_path):
    """Older child checkpoints do not list the scenes of their ancestors."""
    old = registry.register(flying(HOVER, tmp_path / "old.pt", scene_hashes={"hall": halls[0].content_hash()}))
    child = registry.register(flying(CIRCLE, tmp_path / "child.pt"), parents=[old])
    flown = evaluate(registry.resolve(child), halls, SHORT)
    for known in (None, flown):
        with pytest.raises(EvaluationError, match=r"v002, or an ancestor of it, was trained on 1.* of"):
            promote(child, registry, halls, SHORT, challenger=known)
    (registry.path / "v001.pt").unlink()
    assert not promote(child, registry, halls, SHORT)[0].promoted


def test_rows_reach_the_outbox_whole(corridor, tmp_path):
    result = evaluate("random", [corridor], SHORT)
    assert record_evaluation(result, outbox=tmp_path / "outbox") == 4
    tables = {}
    for file in sorted((tmp_path / "outbox").iterdir()):
        header, *rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert header["context"]["seed"] == 0 and header["context"]["config_hash"]
        tables[header["table"]] = rows
    assert [len(tables[name]) for name in ("evaluations", "named_courses", "episodes")] == [1, 1, 2]
    assert tables["evaluations"][0]["evaluation_id"] == result.evaluation_id


def test_map_draws_the_scene_paths_and_seen_floor(door_room):
    course = build_course([door_room], SHORT)
    result = evaluate("forward-plus", course)
    floor, seen = course.floors[0], result.seen[0]
    plain = top_down_map(course.field, 0, {})
    drawn = top_down_map(course.field, 0, {"forward-plus": result.trajectories_of("door")}, floor, seen)
    assert plain.startswith(b"\x89PNG") and drawn.startswith(b"\x89PNG") and plain != drawn
    assert drawn == top_down_map(course.field, 0, {"forward-plus": result.trajectories_of("door")}, floor, seen)
    with pytest.raises(EvaluationError, match="floor map"):
        top_down_map(course.field, 0, {}, seen=seen)
    with pytest.raises(EvaluationError, match=r"path of 'x' has shape \(4,\)"):
        top_down_map(course.field, 0, {"x": np.zeros(4)})


@pytest.fixture
def run(tmp_path, monkeypatch, corridor):
    """Run `navi` on a saved corridor; returns exit code, stdout."""
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    scene = corridor.save(tmp_path / "corridor.gmdag")
    app = build_app(groups=("models", "evaluate", "compare"), plugins=False)

    def call(*arguments, expect=0):
        flags = ["--scene", str(scene), "--starts", "2", "--steps", "30"]
        outcome = CliRunner().invoke(app, [*arguments, *flags])
        assert outcome.exit_code == expect, (outcome.stdout, outcome.exception)
        return outcome

    return call


@pytest.fixture
def hall(halls, tmp_path):
    """A second scene, saved: promotion needs two."""
    return halls[0].save(tmp_path / "hall.gmdag")


def test_evaluate_and_compare_on_the_command_line(run, tmp_path):
    saved = tmp_path / "random.json"
    shown = json.loads(run("evaluate", "random", "--json", "--out", str(saved)).stdout)
    assert shown["summary"]["subject"] == "random" and len(shown["episodes"]) == 2
    assert list((tmp_path / "home" / "outbox").glob("*-evaluations.ndjson"))
    verdict = json.loads(run("compare", "forward-plus", str(saved), "--json").stdout)["comparisons"]
    assert [row["metric"] for row in verdict] == ["c_vis_auc", "collisions_per_minute"]
    assert verdict[0]["a"] == "forward-plus" and verdict[0]["episodes"] == 2
    assert "forward-plus" in run("compare", "forward-plus", "random").stdout


def test_recording_failure_still_prints_and_saves_the_flight(run, hall, tmp_path, monkeypatch):
    def full(*what, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("navi_core.record.metric_log.write_durably", full)
    saved = tmp_path / "flown.json"
    outcome = run("evaluate", "random", "--json", "--out", str(saved), expect=1)
    assert isinstance(outcome.exception, RecordError)
    assert json.loads(outcome.stdout)["episodes"] == json.loads(saved.read_text())["episodes"]
    version = Registry(tmp_path / "home" / "models").register(flying(HOVER, tmp_path / "hover.pt"))
    outcome = run("promote", version, "--json", "--scene", str(hall), expect=1)
    assert isinstance(outcome.exception, RecordError)
    reported = json.loads(outcome.stdout)
    assert reported["version"] == version and not reported["promoted"] and "No space left" in reported["reason"]


def test_an_alias_whose_row_was_lost_is_recorded_by_the_next_promotion(run, hall, tmp_path):
    registry = Registry(tmp_path / "home" / "models")
    version = registry.register(flying(HOVER, tmp_path / "hover.pt"))
    registry.promote(version, "champion")  # the process ended before the row was written
    outcome = run("promote", version, "--scene", str(hall), expect=1)
    assert isinstance(outcome.exception, EvaluationError)
    assert [version in file.read_text() for file in outbox_path().glob("*-alias_moves.ndjson")] == [True]


def test_no_alias_moves_without_a_model_card(halls, tmp_path, monkeypatch):
    def full(*what):
        raise RegistryError("the card cannot be written: No space left on device")

    registry, course, recorded = Registry(tmp_path / "models"), build_course(halls, SIX), []
    hovers, circles = (registry.register(flying(c, tmp_path / f"{i}.pt")) for i, c in enumerate((HOVER, CIRCLE)))
    registry.promote(hovers, "champion")
    monkeypatch.setattr("navi_core.evaluate.promotion.write_model_card", full)
    with pytest.raises(RegistryError, match="No space left"):
        promote(circles, registry, course, record=lambda decision, flights: recorded.append(decision.promoted))
    assert recorded == [True, False] and registry.resolve("champion").version == hovers


def test_saving_failure_still_prints_and_records_the_flight(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    outcome = run("evaluate", "random", "--json", "--out", str(tmp_path / "file" / "flown.json"), expect=1)
    assert isinstance(outcome.exception, EvaluationError)
    assert json.loads(outcome.stdout)["episodes"]
    assert list(outbox_path().glob("*-evaluations.ndjson"))


def test_comparison_records_each_subject_before_the_next(run, tmp_path, monkeypatch):
    fly, flown = evaluate_command.fly_subject, []

    def first_alone(*what):
        if flown:
            raise KeyboardInterrupt
        flown.append(fly(*what))
        return flown[0]

    monkeypatch.setattr("navi_core.cli.compare.fly_subject", first_alone)
    run("compare", "forward-plus", "random", expect=130)
    rows = [json.loads(file.read_text().splitlines()[1]) for file in outbox_path().glob("*-evaluations.ndjson")]
    assert [row["subject"] for row in rows] == ["forward-plus"]


def test_evaluate_warns_of_training_scenes(run, corridor, tmp_path):
    known = flying(HOVER, tmp_path / "known.pt", scene_hashes={"corridor": corridor.content_hash()})
    assert "known was trained on 1 of 1 scenes" in run("evaluate", str(known)).stderr
    assert "trained on" not in run("evaluate", "random").stderr


def test_promote_command_exits_with_one_on_a_refusal(run, hall, tmp_path):
    registry = Registry(tmp_path / "home" / "models")
    version = registry.register(flying(HOVER, tmp_path / "hover.pt"))
    outcome = run("promote", version, "--json", expect=1)
    assert isinstance(outcome.exception, EvaluationError) and "needs 2 scenes or more" in str(outcome.exception)
    row = json.loads(run("promote", version, "--json", "--scene", str(hall), expect=1).stdout)
    assert row["promoted"] is False and row["opponent"] == "random"
    assert list((tmp_path / "home" / "outbox").glob("*-promotions.ndjson"))
    with pytest.raises(RegistryError):
        registry.resolve("champion")


def test_unknown_subjects_are_refused_on_the_command_line(run):
    outcome = run("evaluate", "forwrd", expect=1)
    assert isinstance(outcome.exception, EvaluationError)
    assert "forward-plus" in str(outcome.exception)


def test_invalid_alias_is_refused_before_any_flight(corridor, registry, tmp_path, monkeypatch):
    version = registry.register(flying(HOVER, tmp_path / "hover.pt"))
    monkeypatch.setattr("navi_core.evaluate.promotion.evaluate", lambda *a, **k: pytest.fail("flew first"))
    for alias in ("V 1", "v001", "", "a\x1b[31m"):
        with pytest.raises(RegistryError, match="cannot be an alias"):
            promote(version, registry, build_course([corridor], SHORT), alias=alias)


def test_champion_trained_on_the_scenes_does_not_relax_safety(halls, tmp_path):
    """Of two the safer one is not called worse where it was trained: the gate asks the bounds."""
    course = build_course(halls, SIX)
    crashes, hovers = (evaluate(flying(c, tmp_path / f"{n}.pt"), course) for n, c in enumerate((CRASH, HOVER)))
    hovers.summary["scenes_trained_on"] = 2
    refused = decide("v002", crashes, hovers, previous_version="v001")
    assert not refused.collisions.worse and not refused.promoted and refused.reason.startswith("Refused, it collides")
