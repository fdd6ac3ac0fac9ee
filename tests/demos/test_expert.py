"""Recorded flights: whole or not there, the same whether killed or not, seeded, bound to their settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import ExpertConfig, parse_config
from navi_core.demos import Student, load_dataset, load_demonstration, read_index, record_expert
from navi_core.errors import ConfigError

SMALL = {"pilot": "forward-plus", "episodes": 3, "steps": 12, "azimuth_bins": 16, "elevation_bins": 8}


def recorded(folder):
    return {path.name: load_demonstration(path) for path in sorted(folder.glob("*.npz"))}


def test_recording_is_a_dataset_of_the_teachers_labels(tmp_path, apartments):
    rows = record_expert(tmp_path, apartments, ExpertConfig(**SMALL))
    assert [(row.scene, row.recorded, row.kept) for row in rows] == [(s.name, 3, 0) for s in apartments]
    data = load_dataset([tmp_path])
    assert len(data) == 2 * 3 * 12 and len(data.episodes) == 6
    assert data.scene_hashes == {scene.name: scene.content_hash() for scene in apartments}
    assert data.sources == {scene.source_hash for scene in apartments}
    assert {"surface"} <= set(data.vocabulary) and data.decision_hz == 10.0
    demo = load_demonstration(tmp_path / f"{apartments[0].name}-00000.npz")
    assert demo.pilot == "forward-plus" and demo.limits == (5.0, 2.0, 3.0, 3.0)
    assert demo.episode_starts.tolist() == [True] + [False] * 11
    # Episodes differ; forward-plus never climbs and never slides.
    assert not np.array_equal(
        demo.observations, load_demonstration(tmp_path / f"{apartments[0].name}-00001.npz").observations
    )
    assert not data.actions[:, 1:3].any() and data.actions.any()


def test_limited_sensor_is_recorded_and_teaches(tmp_path, apartments):
    """Each episode draws a sensor, what it does not see is unknown, and the teacher flies by odometry."""
    profiles = ("sphere", "camera")
    settings = SMALL | {"pilot": "compass", "episodes": 6, "sensor": {"profiles": profiles}}
    rows = record_expert(tmp_path, apartments[:1], ExpertConfig(**settings))
    assert rows[0].recorded == 6
    shares = {round(float((demo.observations[:, 0] > 0).mean()), 1) for demo in recorded(tmp_path).values()}
    assert 1.0 in shares and min(shares) < 0.4
    with pytest.raises(ConfigError, match="recorded without"):
        parse_config(ExpertConfig, SMALL | {"sensor": {"delay": (1, 1)}})


def test_scene_names_cannot_lead_out_of_the_folder(tmp_path, apartments):
    """Scene names come from files of unknown origin."""
    scenes = [replace(apartments[0], name=name) for name in ("../../elsewhere", "a/b", "a_b", "x" * 400)]
    folder = tmp_path / "deep" / "flights"
    config = ExpertConfig(**SMALL | {"episodes": 1})
    assert [row.recorded for row in record_expert(folder, scenes, config)] == [1, 1, 1, 1]
    assert {path.parent for path in tmp_path.rglob("*.npz")} == {folder}
    assert [row.kept for row in record_expert(folder, scenes, config)] == [1, 1, 1, 1]
    assert {demo.scene for demo in recorded(folder).values()} == {scene.name for scene in scenes}


def test_stopped_recording_resumes_to_the_same_bits(tmp_path, apartments):
    config = ExpertConfig(**SMALL, noise=0.3)
    record_expert(tmp_path / "straight", apartments, config)
    calls = 0

    def stop():
        nonlocal calls
        calls += 1
        return calls == 18  # in the middle of the second scene

    record_expert(tmp_path / "stopped", apartments, config, stop=stop)
    assert len(recorded(tmp_path / "stopped")) == 3 and not (tmp_path / "stopped" / "index.json").exists()
    (tmp_path / "stopped" / f"{apartments[0].name}-00001.npz").unlink()
    rows = record_expert(tmp_path / "stopped", apartments, config)
    assert [(row.recorded, row.kept) for row in rows] == [(1, 2), (3, 0)]
    one, two = recorded(tmp_path / "straight"), recorded(tmp_path / "stopped")
    assert {k: d.content_hash() for k, d in one.items()} == {k: d.content_hash() for k, d in two.items()}
    assert load_dataset([tmp_path / "straight"]).content_hash == load_dataset([tmp_path / "stopped"]).content_hash


def test_existing_recordings_are_not_reread_for_the_index(tmp_path, apartments, monkeypatch):
    from navi_core.demos import dataset

    config = ExpertConfig(**SMALL)
    record_expert(tmp_path, apartments[:1], config)
    before, read = read_index(tmp_path), []
    load = dataset.load_demonstration
    monkeypatch.setattr(dataset, "load_demonstration", lambda path: read.append(path.name) or load(path))
    record_expert(tmp_path, apartments[:1], config)
    assert read == [] and read_index(tmp_path) == before
    record_expert(tmp_path, apartments[:1], config.model_copy(update={"episodes": 4}))
    assert len(read) == 1 and read_index(tmp_path)["files"][:-1] == before["files"]


def test_recordings_follow_the_seed_and_extend_earlier_episodes(tmp_path, apartments):
    record_expert(tmp_path / "a", apartments[:1], ExpertConfig(**SMALL))
    record_expert(tmp_path / "b", apartments[:1], ExpertConfig(**SMALL | {"seed": 1}))
    record_expert(tmp_path / "c", apartments[:1], ExpertConfig(**SMALL | {"episodes": 1}))
    record_expert(tmp_path / "c", apartments[:1], ExpertConfig(**SMALL))
    a, b, c = (load_dataset([tmp_path / name]).content_hash for name in "abc")
    assert a == c != b


def test_noise_is_flown_but_not_recorded_as_label(tmp_path, apartments):
    still = ExpertConfig(**SMALL)
    record_expert(tmp_path / "a", apartments[:1], still)
    record_expert(tmp_path / "b", apartments[:1], still.model_copy(update={"noise": 0.5}))
    one, two = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    for name in one:
        np.testing.assert_array_equal(one[name].observations[0], two[name].observations[0])
        assert not np.array_equal(one[name].observations[1], two[name].observations[1])
        assert not two[name].actions[:, 1:3].any(), "the answers are the teacher's"


@pytest.mark.parametrize("pilot", ["frontier", "planner"])
def test_privileged_teachers_can_be_recorded(tmp_path, apartments, pilot):
    config = ExpertConfig(**SMALL | {"pilot": pilot, "episodes": 2, "steps": 30, "noise": 0.2, "azimuth_bins": 64})
    record_expert(tmp_path, apartments[:1], config)
    data = load_dataset([tmp_path])
    assert np.abs(data.actions[:, 0]).max() > 0.3 and np.abs(data.actions[:, 3]).max() > 0.3


class Turner:
    """Turns on the spot and remembers what it was given."""

    azimuth_bins, elevation_bins, max_distance = 16, 8, 100.0

    def begin(self, keys, field):
        self.keys, self.field, self.rows = keys, field, []

    def act(self, obs, pose):
        self.rows.append((len(obs), len(pose.yaw), pose.yaw[0].item()))
        return torch.tensor([0.0, 0.0, 0.0, 2.0]).expand(len(obs), 4)


def test_student_flies_and_teacher_labels(tmp_path, apartments):
    student = Student(Turner(), "f" * 64, {"surface": 1})
    config = ExpertConfig(**SMALL, pupil=student.weights, teacher_share=0.0)
    record_expert(tmp_path / "a", apartments[:1], config, student=student)
    assert {row[:2] for row in student.flyer.rows} == {(16, 16)}, "blocks of one size"
    turned = np.diff(np.unwrap([yaw for _, _, yaw in student.flyer.rows]))
    assert turned[1:] == pytest.approx(0.3, abs=1e-3), "3 rad/s for 0.1 s, clamped"
    demos = recorded(tmp_path / "a")
    record_expert(tmp_path / "b", apartments[:1], ExpertConfig(**SMALL))
    for name, alone in recorded(tmp_path / "b").items():
        np.testing.assert_array_equal(alone.observations[0, 0], demos[name].observations[0, 0])
        assert demos[name].vocabulary == {"surface": 1}
    ahead = np.concatenate([demo.actions[:, 0] for demo in demos.values()])
    assert (ahead > 0).any(), "the answers are the teacher's, who flies ahead"
    with pytest.raises(ConfigError, match=r"another pupil.*--out"):
        record_expert(tmp_path / "a", apartments[:1], ExpertConfig(**SMALL))


def test_teacher_flies_its_share_of_decisions(tmp_path, apartments):
    student = Student(Turner(), "f" * 64, {"surface": 1})
    seen = {}
    for share in (0.0, 0.5, 1.0):
        config = ExpertConfig(**SMALL, pupil=student.weights, teacher_share=share)
        record_expert(tmp_path / str(share), apartments[:1], config, student=student)
        seen[share] = np.concatenate([demo.observations for demo in recorded(tmp_path / str(share)).values()])
    record_expert(tmp_path / "alone", apartments[:1], ExpertConfig(**SMALL))
    alone = np.concatenate([demo.observations for demo in recorded(tmp_path / "alone").values()])
    assert np.array_equal(seen[1.0][:, 0], alone[:, 0])
    assert not np.array_equal(seen[0.0], seen[0.5]) and not np.array_equal(seen[1.0], seen[0.5])


class Climber(Turner):
    """Climbs at half speed: axis 1 of the flown action identifies the student, since its teacher never climbs."""

    def act(self, obs, pose):
        return torch.tensor([0.0, 0.5, 0.0, 0.0]).expand(len(obs), 4)


def test_noise_is_independent_of_the_student(tmp_path, apartments):
    student, noise = Student(Climber(), "f" * 64, {"surface": 1}), 0.05
    config = ExpertConfig(**SMALL | {"steps": 60, "noise": noise, "noise_hold": 1, "pupil": student.weights})
    record_expert(tmp_path, apartments[:1], config, student=student)
    demos = recorded(tmp_path).values()
    flown, answers = (np.concatenate([getattr(demo, name) for demo in demos]) for name in ("flown", "actions"))
    taught = flown[:, 1] < 0.25
    ahead = np.abs(flown[:, 0] - np.where(taught, answers[:, 0], 0.0)) / noise
    free = np.abs(answers[:, 0]) < 0.7  # what was not clamped
    for mine in (taught, ~taught):
        seen = ahead[free & mine]
        assert len(seen) > 40
        assert 0.1 < (seen > 1.2).mean() < 0.4, "a normal number is beyond 1.2 in 23 of 100 draws"


def test_student_with_another_sensor_is_refused(tmp_path, apartments):
    student = Student(Turner(), "f" * 64)
    for change, words in (
        ({"azimuth_bins": 32}, "azimuth_bins of the recording is 32, that of the student 16"),
        ({"max_distance": 50.0}, "max_distance"),
        ({"pupil": "0" * 64}, "pupil of the recording"),
    ):
        config = ExpertConfig(**SMALL | {"pupil": student.weights} | change)
        with pytest.raises(ConfigError, match=words):
            record_expert(tmp_path / "x", apartments[:1], config, student=student)
    with pytest.raises(ConfigError, match="none was given"):
        record_expert(tmp_path / "x", apartments[:1], ExpertConfig(**SMALL, pupil=student.weights))
    assert not (tmp_path / "x").exists()


def test_folder_is_bound_to_its_settings(tmp_path, apartments):
    record_expert(tmp_path, apartments[:1], ExpertConfig(**SMALL | {"episodes": 1}))
    with pytest.raises(ConfigError, match=r"noise, steps.*--out"):
        record_expert(tmp_path, apartments[:1], ExpertConfig(**SMALL | {"steps": 13, "noise": 0.1}))
    with pytest.raises(ConfigError, match="frontier"):
        record_expert(tmp_path / "b", apartments[:1], ExpertConfig(**SMALL | {"pilot": "fronter"}))
    assert not (tmp_path / "b").exists()
    with pytest.raises(ConfigError, match="different names"):
        record_expert(tmp_path / "b", [apartments[0], apartments[0]], ExpertConfig(**SMALL))


COMMAND = ["demos", "expert", "--scenes", "apartment:3", "--pilot", "forward-plus", "--resolution", "64"]
COMMAND += ["--azimuth-bins", "16", "--elevation-bins", "8", "--steps", "40", "--json"]


@pytest.mark.slow
def test_killed_recording_leaves_no_partial_file(tmp_path):
    out = tmp_path / "out"
    command = [*COMMAND, "--episodes", "20", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "navi_core.cli.main", *command],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(out.glob("*.npz")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(recorded(out))
    assert kept < 20
    result = CliRunner().invoke(build_app(groups=("demos",), plugins=False), command)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["files"] == 20 and report["scenes_recorded"][0]["kept"] == kept
    assert report["decisions"] == 20 * 40 and len(load_dataset([out])) == 20 * 40


def test_demos_list_reports_the_dataset(tmp_path, apartments):
    record_expert(tmp_path / "a", apartments[:1], ExpertConfig(**SMALL))
    (tmp_path / "a" / "bad.npz").write_bytes(b"x")
    app = build_app(groups=("demos",), plugins=False)
    ingested = CliRunner().invoke(app, ["demos", "ingest", str(tmp_path / "a"), "--out", str(tmp_path / "b"), "--json"])
    assert ingested.exit_code == 1, "something was refused"
    assert [row["accepted"] for row in json.loads(ingested.stdout)["checked"]].count(False) == 1
    shown = CliRunner().invoke(app, ["demos", "inspect", str(tmp_path / "b"), "--json"])
    facts = json.loads(shown.stdout)
    assert (facts["files"], facts["decisions"], facts["resolution"]) == (3, 36, "16x8")
    one = next((tmp_path / "b").glob("*.npz"))
    table = CliRunner().invoke(app, ["demos", "inspect", str(one)])
    assert table.exit_code == 0 and "forward" in table.output and "yaw" in table.output
