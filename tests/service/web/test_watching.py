"""Broadcast of a training: unchanged flights, and no messages without viewers."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.learn import train
from navi_core.record import RunDirectory, navi_home
from navi_core.record.events import EventBus, UpdateMade
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.service.viewing.digest import LAYOUTS, Digest, named, payload
from navi_core.service.viewing.feed import Announcement, Feed, PublisherNote, announced
from navi_core.service.web.hub import send_changes
from navi_core.service.web.run_panel import RunPanel
from navi_core.service.wire import DistanceMatrix, StepResult, TelemetryEvent
from navi_core.world import Field, NavigationEnv
from tests.learn.builders import small_config
from tests.service.wire_samples import matrix as observation

BINS = {"azimuth_bins": 16, "elevation_bins": 8}


def until(condition, seconds=40.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def private(name):
    """Return an endpoint that no other process can reach: one that looks for a port it knew would be a viewer."""
    return f"inproc://{name}"


@pytest.fixture
def env(apartments):
    return NavigationEnv(Field(apartments), 3, EnvConfig(**BINS, stagger=False), seed=1)


@pytest.fixture
def watched(env):
    with TrainingBroadcast("run", "ppo", private("run")) as broadcast:
        yield broadcast, broadcast.watch(env)


@pytest.fixture
def viewer(watched):
    """What a viewer of the broadcast has received."""
    broadcast, _ = watched
    received = []
    feed = Feed([broadcast.endpoint], received.extend, watching=True)
    until(lambda: broadcast.watched)
    yield received, feed
    feed.close()


def observations(received):
    return [message for message in received if isinstance(message, DistanceMatrix)]


def test_no_observation_is_built_without_viewers(watched):
    broadcast, env = watched
    received = []
    # A dashboard without an open page listens to telemetry alone.
    feed = Feed([broadcast.endpoint], received.extend)
    until(lambda: broadcast._telemetry_watched)
    for _ in range(60):
        env.step(torch.rand(3, 4))
        time.sleep(0.005)
    assert env.shown == 0 and received == []
    feed.watch(True)
    until(lambda: broadcast.watched)
    env.step(torch.rand(3, 4))
    assert env.shown == 1
    feed.watch(False)
    until(lambda: not broadcast.watched)
    shown = env.shown
    for _ in range(30):
        env.step(torch.rand(3, 4))
        time.sleep(0.005)
    assert env.shown == shown
    feed.close()


def test_viewer_receives_observations_of_the_selected_drone(watched, viewer):
    broadcast, env = watched
    received, feed = viewer
    feed.select(2)
    until(lambda: broadcast.viewers.selected == 2)
    seen = {}
    for _ in range(12):
        batch = env.step(torch.rand(3, 4) - 0.3)
        seen[env.decisions] = (batch.obs[2].clone(), env.poses()["position"][2].tolist(), float(batch.reward[2]))
        time.sleep(0.05)
    until(lambda: len(observations(received)) >= 4)
    for matrix in observations(received):
        obs, position, _ = seen[matrix.step_id]
        assert matrix.env_ids.tolist() == [2]
        np.testing.assert_array_equal(matrix.depth[0], obs[0].numpy())
        np.testing.assert_array_equal(matrix.semantic[0], obs[1].numpy())
        np.testing.assert_array_equal(matrix.valid_mask[0], obs[2].numpy() > 0)
        assert [matrix.robot_pose.x, matrix.robot_pose.y, matrix.robot_pose.z] == position
        if matrix.step_id - 1 in seen and matrix.step_id > 1:
            before = seen[matrix.step_id - 1][0][0].numpy()
            np.testing.assert_array_equal(matrix.delta_depth[0], obs[0].numpy() - before)
    events = [m for m in received if isinstance(m, TelemetryEvent) and m.event_type == "actor.training.ppo.step"]
    for event in events:
        assert named("step", event.payload)["reward"] == np.float32(seen[event.step_id][2])


def test_new_viewer_is_shown_the_lowest_drone(viewer):
    _, feed = viewer
    drones = enumerate((2, 0, 3, 0, 1))
    greeting = [replace(observation(), env_ids=np.array([n], np.int32), step_id=step) for step, n in drones]
    (shown,) = feed._newest(greeting)
    assert (shown.env_ids.tolist(), shown.step_id) == ([0], 3)
    feed.select(3)
    (shown,) = feed._newest(greeting)
    assert shown.env_ids.tolist() == [3]


def test_observations_come_ten_times_a_second_at_most(watched, viewer):
    _, env = watched
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        env.step(torch.zeros(3, 4))
    assert 8 <= env.shown <= 12


def test_viewer_joining_during_an_update_receives_observations(watched):
    broadcast, env = watched
    for _ in range(3):
        env.step(torch.rand(3, 4))
    received = []
    feed = Feed([broadcast.endpoint], received.extend, watching=True)
    until(lambda: len(observations(received)) >= 2)
    feed.close()
    first, again = observations(received)[:2]
    assert first.step_id == again.step_id == 3 and first.overhead.shape == (256, 256, 3)


def test_late_viewer_receives_the_scene_event(watched, viewer):
    broadcast, env = watched
    env.step(torch.rand(3, 4))
    late = []
    feed = Feed([broadcast.endpoint], late.extend, watching=True)
    deadline = time.monotonic() + 10.0
    digest = Digest()
    while digest.picture is None or "metres_per_pixel" not in digest.scene:
        assert time.monotonic() < deadline
        env.step(torch.zeros(3, 4))
        time.sleep(0.02)
        while late:
            digest.update(late.pop(0))
    feed.close()


def test_viewers_change_no_bit_of_a_training(apartments, tmp_path):
    config = small_config(rows=4, total_steps=4 * 32 * 2, seed=3)

    def weights(name, viewer):
        with RunDirectory.open(tmp_path / name, asset="a", partition="p", config=config) as run:
            with TrainingBroadcast(name, "ppo", private(name)) as broadcast:
                feed = Feed([broadcast.endpoint], lambda batch: None, watching=True) if viewer else None
                if viewer:
                    until(lambda: broadcast.watched)
                envs = []

                def watch(env):
                    envs.append(broadcast.watch(env))
                    return envs[0]

                field = Field(apartments, threads=1)
                result = train(
                    config, run, field=field, watch=watch, events=EventBus({UpdateMade: broadcast.show_update})
                )
                if feed is not None:
                    feed.close()
            saved = torch.load(result.checkpoint, weights_only=True)
            return saved["policy_state"], envs[0].shown

    (alone, none), (seen, some) = weights("alone", False), weights("watched", True)
    assert none == 0, "somebody watched who was not asked to"
    assert some > 0, "the viewer was shown nothing"
    assert alone.keys() == seen.keys()
    assert [key for key in alone if not torch.equal(alone[key], seen[key])] == []


def test_event_values_round_trip_by_name():
    values = {name: float(place) for place, name in enumerate(LAYOUTS["update"])}
    assert named("update", payload("update", values)) == values
    assert np.isnan(payload("update", {})).all()


def update(step, **values):
    numbers = payload("update", {"step": step, **values})
    return TelemetryEvent("actor.training.ppo.update", 0, 0, int(step), numbers, time.time())


def test_resumed_run_continues_its_curve_at_the_checkpoint():
    digest = Digest()
    for step in (10.0, 20.0, 30.0):
        digest.update(update(step, entropy=step))
    digest.update(update(20.0, entropy=21.0))
    assert digest.curve.steps == [10.0, 20.0] and digest.curve.series["entropy"] == [10.0, 21.0]
    assert digest.curve.series["nll"] == [None, None]


def test_viewers_receive_goal_metrics():
    digest = Digest()
    digest.update(update(10.0, success_rate=0.5, goal_progress=0.1, goal_success=0.25))
    values = [digest.curve.series[name][0] for name in ("success_rate", "goal_progress", "goal_success")]
    assert values == pytest.approx([0.5, 0.1, 0.25])


def test_curves_and_sessions_stay_bounded():
    digest = Digest()
    for step in range(2000):
        digest.update(update(step + 1.0, entropy=float(step)))
        digest.update(TelemetryEvent(f"actor.inference.x{step}", 0, step, 1, np.zeros(3, np.float32), 0.0))
    steps, series = digest.curve.steps, digest.curve.series
    assert len(steps) <= 800 and steps[-1] == 2000.0
    assert all(len(values) == len(steps) for values in series.values())
    assert len(digest.sessions) == 256 and len(digest.others) == 64


def test_curves_of_a_long_run_cover_it_evenly():
    digest, sent = Digest(), {}
    for number in range(1, 12_001):
        digest.update(update(8192.0 * number, entropy=0.5))
    hub = SimpleNamespace(viewers=1, send=lambda kind, message, *arrays: sent.update({kind: message}))
    send_changes(hub, digest, training=lambda: RunPanel(hub).training(digest))
    steps = np.array(sent["training"]["steps"])
    counts, _ = np.histogram(steps / 8192.0, bins=12, range=(0, 12_000))
    assert steps[-1] == 8192.0 * 12_000 and counts.min() >= 0.9 * counts.max(), counts


def test_curve_steps_are_exact_beyond_float32():
    digest = Digest()
    for step in (200_000_001, 200_000_003, 200_000_005):
        digest.update(update(step, entropy=0.5))
    assert digest.curve.steps == [200_000_001.0, 200_000_003.0, 200_000_005.0]


def test_notes_of_dead_processes_and_invalid_notes_are_left_out(tmp_path):
    note = Announcement("run", "tcp://127.0.0.1:1", os.getpid(), 4, ["a"], {"wall": 2})
    published = PublisherNote(note)
    folder = navi_home() / "live"
    (folder / "gone.json").write_text(json.dumps(note.__dict__ | {"name": "gone", "pid": 2**22 + 12345}))
    for number, text in enumerate(
        ("", "[]", "{}", '{"name": 3}', "[" * 100_000, json.dumps(note.__dict__ | {"more": 1}))
    ):
        (folder / f"bad{number}.json").write_text(text)
    (folder / "long.json").write_bytes(b" " * (2 << 20))
    assert announced() == [note]
    published.withdraw()
    assert not announced()


def test_killed_trainings_are_not_listed_as_running(tmp_path):
    """Nights leave notes behind, and after a reboot other programs have their pids."""
    note = Announcement("z-tonight", "tcp://127.0.0.1:1", os.getpid(), 1)
    folder = navi_home() / "live"
    folder.mkdir(parents=True)
    for number in range(300):
        pid = os.getppid() if number < 20 else 2**22 + number
        (folder / f"night-{number}.json").write_text(
            json.dumps(note.__dict__ | {"name": f"night-{number}", "pid": pid})
        )
    with TrainingBroadcast("z-tonight", "ppo", private("tonight")) as broadcast:
        assert [note.endpoint for note in announced()] == [broadcast.endpoint]
        # Those whose pid lives could be of a publisher that knows no locks yet; they are not shown.
        assert len(list(folder.iterdir())) == 21
        broadcast._note.change(replace(note, rows=7))
        assert [note.rows for note in announced()] == [7]
        # Another run of that name, started later, has its own note.
        later = PublisherNote(replace(note, endpoint="tcp://127.0.0.1:2"))
    assert [note.endpoint for note in announced()] == ["tcp://127.0.0.1:2"]
    later.withdraw()
    assert not announced()


def test_note_of_another_machine_is_kept_without_file_locks(monkeypatch):
    """A cluster's disk without locks: a pid of another node does not exist here."""

    def refused(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("navi_core.machine.file_lock.fcntl.flock", refused)
    there = navi_home() / "live" / "there.json"
    there.parent.mkdir(parents=True)
    note = Announcement("here", "tcp://127.0.0.1:1", os.getpid(), 1)
    there.write_text(json.dumps(note.__dict__ | {"name": "there", "pid": 2**22 + 1}))
    here = PublisherNote(note)
    assert there.exists() and announced() == [note]
    here.withdraw()
    assert not announced()


def test_layout_names_are_unique():
    for names in LAYOUTS.values():
        assert len(set(names)) == len(names)


def test_gate_verdicts_and_results_are_listed_by_session():
    digest = Digest()
    for drone, send in ((4, 1.0), (7, 0.0)):
        numbers = np.array([send, 0.0, 0.25, 1.0, 0.5, 0.0, 0.0], np.float32)
        digest.update(TelemetryEvent("actor.inference.gate", 1, drone, 9, numbers, 0.0))
    digest.update(StepResult(10, 4, 1, False, False, 0.5, 3.0, 0.0))
    one, two = digest.recent_sessions()
    assert (one["session"], one["gate"], one["steps"]) == (4, "SEND", 10)
    assert (one["reward"], one["episode_return"]) == (0.5, 3.0)
    assert (two["gate"], two["steps"], two["expected"]) == ("WAIT", 9, 0.25)
    assert digest.recent_others()["actor.inference.gate"]["clearance"] == 1.0


def test_path_of_a_viewer_breaks_at_teleports_alone():
    digest = Digest(row=0)
    for step, x in ((1, 0.0), (5, 3.0), (9, 6.5), (10, 30.0), (14, 33.0)):
        one = observation()
        digest.update(
            replace(one, env_ids=np.array([0], np.int32), step_id=step, robot_pose=replace(one.robot_pose, x=x))
        )
    xs = [point[0] for point in digest.trajectory]
    np.testing.assert_array_equal(xs, [0.0, 3.0, 6.5, np.nan, 30.0, 33.0])
