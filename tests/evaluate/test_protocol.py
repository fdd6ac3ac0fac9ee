"""Episodes: pure, frozen, measured rightly, and independent of what else is flown."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.evaluate import eval_config, find_subject, run_name
from navi_core.cli.main import build_app
from navi_core.config import (
    NOISY_SENSOR,
    CompileConfig,
    CorpusConfig,
    DynamicsConfig,
    EnvConfig,
    EvalConfig,
    PolicyConfig,
    SensorConfig,
    ShaperConfig,
    TrainConfig,
)
from navi_core.errors import CheckpointError, ConfigError, EvaluationError
from navi_core.evaluate import EvalResult, build_course, evaluate
from navi_core.evaluate.flight.frozen_starts import Flight
from navi_core.evaluate.metrics.coverage import Coverage
from navi_core.evaluate.protocol import episode_row
from navi_core.evaluate.statistics import FEW_SCENES
from navi_core.models import Checkpoint, Registry, save_checkpoint, weights_hash
from navi_core.models.lineage import corpus_of
from navi_core.policy import build_policy
from navi_core.record.home import scene_loaders
from navi_core.scenes import compile_mesh, discover
from tests.conftest import box_triangles, fly_ahead, mesh_of

SHORT = EvalConfig(starts=2, max_steps=12, azimuth_bins=32, elevation_bins=8, block=4)
NETWORK = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=32, elevation_bins=8)


def lively(config: PolicyConfig = NETWORK, seed: int = 0):
    """A policy whose first actions are large enough to travel."""
    policy = build_policy(config, seed)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if name.startswith("heads.actor") and weight.shape[0] == 4:
                weight.mul_(80)
    return policy


def checkpoint(path, *, policy=None, dynamics=None, shaper=None, **fields):
    policy = policy or lively()
    env = EnvConfig(azimuth_bins=32, elevation_bins=8, dynamics=dynamics or DynamicsConfig())
    config = TrainConfig(actors=2, env=env, policy=policy.config, shaper=shaper or ShaperConfig())
    return save_checkpoint(
        path,
        Checkpoint.of(
            policy=policy,
            optimizer=None,
            config=config,
            step_id=640,
            episode_count=3,
            reward_ema=0.5,
            run_id="test-run",
            wall_time_hours=0.1,
            **fields,
        ),
    )


def test_hovering_covers_its_start_view_without_collisions(box_room, constant):
    result = evaluate(constant(0, 0, 0, 0), [box_room], SHORT)
    for row, path in zip(result.episodes, result.trajectories):
        assert row["path_length"] == 0 and row["collisions"] == 0 and row["collision_free"]
        assert path.shape == (13, 3)
        assert np.allclose(path, [row["start_x"], row["start_y"], row["start_z"]])
        assert row["c_vis_auc"] == pytest.approx(row["c_vis_final"])
        assert row["c_visit"] == pytest.approx(100 / 80)
    assert result.summary["collision_free_rate"] == 1.0
    curve = result.summary["coverage_curve"]
    assert curve["step"][-1] == 12 and curve["c_vis_percent"][0] == pytest.approx(result.summary["c_vis_auc"], abs=1e-3)


def test_a_collision_is_a_decision_with_a_reverted_substep(corridor, constant):
    """Climbing at 2 m/s under a ceiling: free decisions first, then every decision is one event."""
    config = EvalConfig(starts=1, max_steps=30)
    result = evaluate(constant(0, 1, 0, 0), [corridor], config)
    row, path = result.episodes[0], result.trajectories[0]
    rise = 2.4 - 0.15 - row["start_y"]
    flown = 0.85 * 0.04 + sum(0.04 - 0.006 * 0.15**k for k in range(1, 5))  # the first five substeps, from rest
    free = 1 + int((rise - flown) / 0.2)
    assert row["collisions"] in (30 - free, 30 - free - 1)
    assert row["collisions_per_minute"] == pytest.approx(row["collisions"] / (30 * 0.1 / 60))
    assert row["path_length"] == pytest.approx(rise, abs=0.05)
    assert path[-1, 1] == pytest.approx(2.25, abs=0.05)
    assert row["height_max"] == pytest.approx(rise, abs=0.05) and rise / 2 < row["height_mean"] < rise
    assert row["collisions_per_100m"] == pytest.approx(100 * row["collisions"] / max(row["path_length"], 1.0))
    assert row["clearance_p5"] >= 0.149


def test_way_to_a_coverage_and_inputs_are_reported(box_room, tmp_path):
    result = evaluate("forward-plus", [box_room], SHORT)
    for row, path in zip(result.episodes, result.trajectories):
        for share in (90, 95):
            steps, way = row[f"c_vis_steps_to_{share}"], np.linalg.norm(np.diff(path, axis=0), axis=1)
            assert row[f"c_vis_metres_to_{share}"] == (None if steps is None else pytest.approx(way[:steps].sum()))
    assert any(row["c_vis_metres_to_90"] is not None for row in result.episodes)
    assert result.summary["inputs"] == "observation; full sphere 32x8, depth to 100 m, exact"
    checkpoint(tmp_path / "new.pt", policy=lively())
    flown = evaluate(tmp_path / "new.pt", [box_room], SHORT).summary
    assert flown["initial"] == "new weights" and flown["inputs"].startswith("observation;")


def test_the_row_of_an_episode_by_hand(box_room):
    """Twenty decisions of a tenth of a metre, three of them collisions; a path under a metre counts as a metre."""
    course = build_course([box_room], EvalConfig(starts=1, max_steps=20, surface=True))
    coverage = Coverage(
        seen=np.linspace(0.0, 8.0, 21), visited=np.linspace(0.25, 5.25, 21), seen_share=np.linspace(0.0, 50.0, 21),
        visited_share=np.linspace(1.0, 21.0, 21), seen_cells=np.zeros_like(course.truths[0].reachable),
    )  # fmt: skip
    hit, clearance = np.arange(20) < 3, np.linspace(0.2, 2.1, 20).astype(np.float32)
    for step, per_metre in ((0.1, 4.0), (0.02, 8.0)):
        path = np.stack([1.0 + step * np.arange(21), np.full(21, 1.2), np.full(21, 2.0)], axis=1).astype(np.float32)
        flight = Flight(path, np.zeros(21, np.float32), hit, clearance)
        row = episode_row(course, course.starts[0], flight, coverage, 100.0)
        assert (row["steps"], row["collisions"], row["collision_free"]) == (20, 3, False)
        assert row["collisions_per_minute"] == pytest.approx(3 / (2 / 60))
        assert row["collisions_per_100m"] == pytest.approx(300 / max(20 * step, 1.0))
        assert row["path_length"] == pytest.approx(20 * step, rel=1e-4)
        assert row["clearance_p5"] == pytest.approx(0.295)  # 0.95 of the way from the first to the second
        assert (row["c_vis_m2"], row["c_vis_final"], row["c_visit"]) == (8.0, 50.0, 21.0)
        assert row["c_vis_auc"] == pytest.approx(50 * 21 / 40) and row["seen_per_metre"] == pytest.approx(per_metre)
        walls = 2 * (5 * 2.4 + 5 * 4 + 2.4 * 4)
        assert row["c_surf_m2"] == pytest.approx(walls * row["c_surf_final"] / 100, rel=0.15)


def test_starts_are_reachable_apart_and_frozen(box_room, door_room):
    course = build_course([box_room, door_room], EvalConfig(starts=6))
    again = build_course([door_room], EvalConfig(starts=3))
    points = torch.tensor([start.position for start in course.starts])
    for floor, index in zip(course.floors, (0, 1)):
        mine = torch.tensor([start.scene_index == index for start in course.starts])
        assert floor.contains(points[mine]).all()
        gaps = torch.pdist(points[mine][:, ::2])
        assert gaps.min() > 0.5
    for old, new in zip(course.starts[6:9], again.starts):
        assert (old.position, old.yaw, old.key) == (new.position, new.yaw, new.key)
    other = build_course([door_room], EvalConfig(starts=3, seed=1))
    assert other.starts[0].position != again.starts[0].position


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("core", ["gru", "mamba2"])
def test_result_is_independent_of_the_other_scenes(box_room, door_room, corridor, core, deterministic):
    config = SHORT.model_copy(update={"deterministic": deterministic})
    policy = lively(NETWORK.model_copy(update={"core": core}))
    together = evaluate(policy, [box_room, door_room, corridor], config)
    alone = evaluate(policy, [door_room], config.model_copy(update={"starts": 1}))
    assert together.trajectories_of("door")[0].tobytes() == alone.trajectories[0].tobytes()
    mine = next(row for row in together.episodes if row["scene"] == "door" and row["start"] == 0)
    assert mine == alone.episodes[0]
    assert mine["path_length"] > 0.05


@pytest.mark.parametrize("faults", [NOISY_SENSOR, SensorConfig(delayed=True)])
def test_sensor_faults_are_independent_of_the_other_scenes(box_room, door_room, faults):
    config = SHORT.model_copy(update={"sensor": faults})
    together = evaluate(lively(), [box_room, door_room], config)
    alone = evaluate(lively(), [door_room], config)
    assert [path.tobytes() for path in alone.trajectories] == [
        path.tobytes() for path in together.trajectories_of("door")
    ]
    clean = evaluate(lively(), [door_room], SHORT)
    assert clean.trajectories[0].tobytes() != alone.trajectories[0].tobytes()
    assert clean.episodes[0]["sensor"] == "clean" != alone.episodes[0]["sensor"]
    # The first decision of a delayed sensor is its own, so the first motion is that of the clean flight.
    same = bool((clean.trajectories[0][1] == alone.trajectories[0][1]).all())
    assert same is faults.delayed


def test_options_override_the_protocol():
    assert eval_config("quick", None, None, 0, False, False) == EvalConfig(starts=3, max_steps=200)
    full = eval_config("full", None, 50, 7, True, True)
    assert full == EvalConfig(starts=10, max_steps=50, seed=7, deterministic=False, surface=True, sensor=NOISY_SENSOR)
    with pytest.raises(ConfigError, match="no protocol 'long'; allowed: quick, full"):
        eval_config("long", None, None, 0, False, False)


def test_evaluation_is_repeatable_and_keeps_weights_and_threads(box_room):
    policy = lively()
    before, threads = weights_hash(policy), torch.get_num_threads()
    first, second = (evaluate(policy, [box_room], SHORT) for _ in range(2))
    assert first.episodes == second.episodes and first.evaluation_id == second.evaluation_id
    assert weights_hash(policy) == before == first.summary["weights_hash"]
    assert torch.get_num_threads() == threads
    sampled = evaluate(policy, [box_room], SHORT.model_copy(update={"deterministic": False}))
    assert sampled.episodes[0]["path_length"] != first.episodes[0]["path_length"]
    assert sampled.evaluation_id != first.evaluation_id


def test_weights_that_change_in_flight_are_refused(box_room, monkeypatch):
    policy = lively()
    act = policy.act

    def learning(*args):
        with torch.no_grad():
            next(policy.parameters()).add_(1e-3)
        return act(*args)

    monkeypatch.setattr(policy, "act", learning)
    with pytest.raises(EvaluationError, match="weights of policy changed"):
        evaluate(policy, [box_room], SHORT)


def test_a_checkpoint_flies_like_its_policy(box_room, tmp_path):
    shaper = ShaperConfig(rnd_start=0, rnd_end=0, loop_coefficient=0)
    path = checkpoint(tmp_path / "last.pt", shaper=shaper)
    result = evaluate(path, [box_room], SHORT)
    direct = evaluate(lively(), [box_room], SHORT)
    assert [path.tobytes() for path in result.trajectories] == [path.tobytes() for path in direct.trajectories]
    assert result.subject == "last" and result.summary["subject_kind"] == "checkpoint"
    assert result.summary["training_steps"] == 640 and len(result.summary["subject_sha256"]) == 64


def test_curiosity_and_loop_memory_of_training_reach_the_policy(box_room, tmp_path):
    config = SHORT.model_copy(update={"max_steps": 8})
    shaper = ShaperConfig(memory_exclusion=2, memory_capacity=2000)
    with_aux = evaluate(checkpoint(tmp_path / "a.pt", shaper=shaper), [box_room], config)
    quiet = evaluate(lively(), [box_room], config)
    assert with_aux.trajectories[0].tobytes() != quiet.trajectories[0].tobytes()
    again = evaluate(tmp_path / "a.pt", [box_room], config)
    assert with_aux.episodes == again.episodes


def test_another_decision_rate_is_refused_with_both_numbers(box_room, tmp_path):
    path = checkpoint(tmp_path / "fast.pt", dynamics=DynamicsConfig(steps_per_decision=1))
    with pytest.raises(EvaluationError, match=r"decides 50 times a second and the evaluation 10 times"):
        evaluate(path, [box_room], SHORT)


def test_a_policy_that_reads_the_training_reward_is_refused(box_room):
    with pytest.raises(EvaluationError, match="aux: full"):
        evaluate(lively(NETWORK.model_copy(update={"aux": "full"})), [box_room], SHORT)


def test_semantic_ids_are_those_of_training(box_room, tmp_path):
    summary = {"semantic_vocabulary": {"surface": 1, "wall": 2}}
    path = checkpoint(tmp_path / "named.pt", corpus_summary=summary)
    assert evaluate(path, [box_room], SHORT).episodes
    renamed = {name: number + 5 for name, number in summary["semantic_vocabulary"].items()}
    course = build_course([box_room], SHORT, vocabulary=renamed)
    with pytest.raises(EvaluationError, match="semantic id of 'surface' is 6 in these scenes and 1"):
        evaluate(path, course)


def test_training_scenes_are_counted(box_room, door_room, tmp_path):
    path = checkpoint(tmp_path / "seen.pt", scene_hashes={"box": box_room.content_hash()})
    assert evaluate(path, [box_room, door_room], SHORT).summary["scenes_trained_on"] == 1


def test_recompiled_mesh_is_the_same_scene(door_room, tmp_path):
    """Compiled at another resolution, it has another content."""
    mesh = mesh_of(box_triangles((0, 0, 0), (5, 2.4, 4)), "box")
    finer, coarse = (compile_mesh(mesh, CompileConfig(resolution=resolution)) for resolution in (256, 64))
    assert finer.content_hash() != coarse.content_hash()
    hashes, reported = corpus_of([coarse], {})
    assert reported["trained_on"] == sorted({coarse.source_hash, *hashes.values()}), "as a resumed run tells it"
    summary = {"trained_on": [coarse.source_hash]}
    path = checkpoint(tmp_path / "seen.pt", scene_hashes={"box": coarse.content_hash()}, corpus_summary=summary)
    assert evaluate(path, [finer, door_room], SHORT).summary["scenes_trained_on"] == 1
    broken = checkpoint(tmp_path / "broken.pt", corpus_summary={"trained_on": 5})
    with pytest.raises(CheckpointError, match="no list of hashes"):
        evaluate(broken, [finer], SHORT)


def test_progress_counts_the_decisions_of_all_blocks(box_room, constant):
    config, reported = EvalConfig(starts=3, max_steps=2, block=2), []
    evaluate(constant(0, 0, 0, 0), [box_room], config, progress=lambda *part: reported.append(part))
    assert reported == [(done, 4) for done in (1, 2, 3, 4)]


def test_nan_action_error_names_decision_scene_and_start(box_room, constant):
    with pytest.raises(EvaluationError, match="NaN or Inf at decision 0 of scene box, start 0"):
        evaluate(constant(float("nan"), 0, 0, 0), [box_room], SHORT)


def test_subjects_that_do_not_exist_are_refused(box_room, tmp_path):
    with pytest.raises(EvaluationError, match="forward-plus"):
        evaluate("forward", [box_room], SHORT)
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError):
        evaluate(broken, [box_room], SHORT)
    with pytest.raises(EvaluationError, match="cannot evaluate a int"):
        evaluate(3, [box_room], SHORT)
    with pytest.raises(EvaluationError, match="no scene"):
        evaluate("random", [], SHORT)
    with pytest.raises(EvaluationError, match=r"two scenes are named 'box'.*navi scenes compile"):
        evaluate("random", [box_room, box_room], SHORT)
    with pytest.raises(EvaluationError, match="another configuration"):
        evaluate("random", build_course([box_room], SHORT), EvalConfig())


def test_rows_are_plain_and_survive_a_file(box_room, tmp_path):
    result = evaluate("random", [box_room], SHORT)
    rows = result.to_rows()
    assert json.loads(json.dumps(rows)) == rows
    (head,), episodes = rows["evaluations"], rows["episodes"]
    assert head["c_vis_auc"] == pytest.approx(result.summary["c_vis_auc"] / 100)
    assert head["c_vis"] == pytest.approx(result.summary["c_vis_final"] / 100)
    assert {row["evaluation_id"] for row in episodes} == {head["evaluation_id"]}
    assert [(row["scene"], row["start"]) for row in episodes] == [("box", 0), ("box", 1)]
    assert 0 <= episodes[0]["c_visit"] <= 1 and episodes[0]["reachable_m2"] == pytest.approx(16.56, rel=0.03)
    loaded = EvalResult.load(result.save(tmp_path / "sub" / "random.json"))
    assert loaded.episodes == result.episodes and loaded.summary == result.summary and loaded.config == result.config


def test_interval_of_an_old_file_is_recomputed(box_room, tmp_path):
    result = evaluate("random", [box_room], SHORT)
    reported = dict(result.summary)
    result.summary.update(c_vis_auc_low=reported["c_vis_auc"], c_vis_auc_high=reported["c_vis_auc"])
    assert EvalResult.load(result.save(tmp_path / "old.json")).summary == reported
    # Of many scenes it is the bootstrap's to this day, and stays as it was flown.
    result.summary.update(c_vis_auc_low=0.0, c_vis_auc_high=100.0)
    result.episodes[:] = [row | {"scene": f"scene-{i}"} for i in range(FEW_SCENES) for row in result.episodes]
    assert EvalResult.load(result.save(tmp_path / "many.json")).summary == result.summary


@pytest.mark.parametrize("text", ["", "{}", '{"navi_evaluation": 1}', "[1]"])
def test_files_that_hold_no_evaluation_are_refused(tmp_path, text):
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(EvaluationError, match=r"odd\.json"):
        EvalResult.load(path)


def stubborn(recovery: bool):
    """A policy that flies ahead at full speed whatever it sees."""
    return fly_ahead(build_policy(NETWORK.model_copy(update={"recovery": recovery})))


def test_stuck_policy_recovers_if_trained_with_recovery(box_room):
    config = EvalConfig(starts=1, max_steps=120, azimuth_bins=32, elevation_bins=8, block=2)
    alone, freed = (evaluate(stubborn(has), [box_room], config) for has in (False, True))
    assert alone.summary["recovery_steps"] == 0 and alone.episodes[0]["collisions"] > 60
    assert freed.summary["recovery_steps"] == freed.episodes[0]["recovery_steps"] > 0
    assert freed.episodes[0]["path_length"] > 1.5 * alone.episodes[0]["path_length"]
    assert freed.episodes[0]["c_vis_m2"] >= alone.episodes[0]["c_vis_m2"]
    for has, setting, like in ((False, True, freed), (True, False, alone)):
        forced = evaluate(stubborn(has), [box_room], config.model_copy(update={"recovery": setting}))
        assert np.array_equal(forced.trajectories[0], like.trajectories[0])
    sampled = config.model_copy(update={"deterministic": False})
    flown = [evaluate(stubborn(has), [box_room], sampled) for has in (False, True)]
    assert np.array_equal(flown[0].trajectories[0], flown[1].trajectories[0])
    assert eval_config("quick", None, None, 0, False, False).recovery is None
    assert eval_config("quick", None, None, 0, False, False, recovery=False).recovery is False


def test_the_folder_of_a_run_flies_its_newest_checkpoint(box_room, tmp_path):
    runs = tmp_path / "runs"
    for run in ("a-0-x", "b-0-y"):
        (runs / run / "checkpoints").mkdir(parents=True)
        for number in (64, 640):
            checkpoint(
                runs / run / "checkpoints" / f"step-{number:012d}.pt", policy=lively(seed=len(run) + ord(run[0]))
            )
    newest = runs / "a-0-x" / "checkpoints" / "step-000000000640.pt"
    assert find_subject(str(runs / "a-0-x"), None) == newest
    (runs / "a-0-x" / "checkpoints" / "best.pt").write_bytes(newest.read_bytes())
    assert find_subject(str(runs / "a-0-x"), None).name == "best.pt"
    scene = box_room.save(tmp_path / "box.gmdag")
    command = ["compare", str(runs / "a-0-x"), str(runs / "b-0-y"), "--scene", str(scene), "--starts", "2"]
    done = CliRunner().invoke(build_app(plugins=False), [*command, "--steps", "8", "--json", "--no-record"])
    assert done.exit_code == 0, (done.output, done.exception)
    (row, _) = json.loads(done.stdout)["comparisons"]
    assert (row["a"], row["b"]) == ("a-0-x", "b-0-y")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(EvaluationError, match="nothing holds no checkpoint"):
        find_subject(str(tmp_path / "nothing"), None)


def test_a_version_is_not_hidden_by_a_folder_of_its_name(tmp_path, monkeypatch):
    registry = Registry(tmp_path / "models")
    version = registry.register(checkpoint(tmp_path / "a.pt"))
    (tmp_path / version).mkdir()
    monkeypatch.chdir(tmp_path)
    found = find_subject(version, tmp_path / "models")
    assert found.version == version and run_name(version, found) is None


def test_scenes_of_one_name_in_two_folders_are_all_flown(box_room, tmp_path):
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        names.append(str(box_room.save(tmp_path / folder / "house.gmdag")))
    obj = tmp_path / "c" / "house.obj"
    obj.parent.mkdir()
    obj.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    found = scene_loaders([*names, str(obj), str(obj)], 64)
    assert [name for name, _ in found] == ["a_house", "b_house", "c_house"]


def test_scene_names_are_unique(tmp_path):
    def mesh(*parts):
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(exist_ok=True)
        path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
        return str(path)

    files = [mesh("a", "house.obj"), mesh("b", "house.obj"), mesh("c", "a_house.obj"), mesh("e", "maze_0003.obj")]
    found = [name for name, _ in scene_loaders([*files, "maze:3"], 64)]
    assert re.fullmatch("a_house_[0-9a-f]{8}", found[0])
    assert found[1:] == ["b_house", "a_house", "e_maze_0003", "maze_0003"]


def test_compiled_scene_wins_over_its_mesh(box_room, tmp_path):
    for folder in ("c", "d"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "house.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    compiled = box_room.save(tmp_path / "d" / "house.gmdag")
    meshes = [str(tmp_path / folder / "house.obj") for folder in ("d", "c")]
    found = scene_loaders([*meshes, str(compiled)], 64)
    assert [name for name, _ in found] == ["c_house", "d_house"]
    found = discover(CorpusConfig(scenes=(*meshes, str(compiled))))
    assert [source.path for source in found] == [tmp_path / "c" / "house.obj", compiled]


def test_recovery_of_sampled_flights_is_refused():
    with pytest.raises(ConfigError, match="sampled ones come free by themselves"):
        eval_config("quick", None, None, 0, True, False, recovery=True)
