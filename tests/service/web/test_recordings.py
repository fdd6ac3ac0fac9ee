"""Recordings: every message is read back, a kill costs one, and foreign files cost nothing."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import ConfigError, NaviError, RecordError
from navi_core.service.recordings import (
    FORMATS,
    Recording,
    RecordingWriter,
    list_episodes,
    record_session,
    trace_episode,
)
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.service.web.app import served_page
from navi_core.service.web.replay import ReplayShow
from navi_core.service.wire import DistanceMatrix, encode
from navi_core.world import denormalise_depth, spherical_directions
from tests.service.web.page_client import page_client
from tests.service.web.test_dashboard import env  # noqa: F401
from tests.service.web.test_watching import update
from tests.service.wire_samples import matrix as observation

NEWEST = FORMATS[-1]


@pytest.fixture
def session(env, tmp_path):  # noqa: F811
    """A recorded flight of drone 1: the file, and what it saw by decision."""
    path, seen = tmp_path / "session.navi", {}
    with TrainingBroadcast("run", "ppo") as broadcast:
        watched = broadcast.watch(env)

        def fly():
            if broadcast.watched and broadcast.viewers.selected == 1 and watched.shown < 5:
                batch, pose = watched.step(torch.rand(3, 4)), env.poses()
                seen[watched.decisions] = batch.obs[1].clone(), pose["position"][1].numpy(), pose["yaw"][1]
                time.sleep(0.02)
            return counts["distance_matrix_v2"] >= 4

        def report(done):
            counts.update(done.messages)

        counts = {"distance_matrix_v2": 0}
        done = record_session([broadcast.endpoint], path, drone=1, seconds=20.0, stop=fly, progress=report)
    assert done.refused == 0 and done.messages["distance_matrix_v2"] >= 4
    return path, seen


def messages(path):
    with Recording(path) as recording:
        return list(recording.messages())


def test_recorded_session_is_read_back_message_by_message(session):
    path, seen = session
    matrices = [message for _, message in messages(path) if isinstance(message, DistanceMatrix)]
    for matrix in matrices:
        np.testing.assert_array_equal(matrix.depth[0], seen[matrix.step_id][0][0].numpy())
        assert matrix.env_ids.tolist() == [1]
    with Recording(path) as recording:
        (episode,) = list_episodes(recording)
        assert episode.drone == 1 and episode.frames == len({m.step_id for m in matrices})
        trace = trace_episode(recording, episode)
    first = seen[matrices[0].step_id]
    np.testing.assert_array_equal(trace.depth[0], denormalise_depth(first[0][0], 100.0).numpy())
    assert set(trace.scalars) >= {"reward", "speed", "view_gain"}


def test_trace_points_lie_on_the_scene_surface(session, env):  # noqa: F811
    path, seen = session
    with Recording(path) as recording:
        trace = trace_episode(recording, list_episodes(recording)[0])
    points, semantic = trace.points(0)
    _, position, yaw = next(iter(seen.values()))
    field, scene = env.field, torch.tensor([1])
    hits = field.cast_rays(torch.tensor(position[None]), spherical_directions(16, 8), scene, 100.0, yaw=yaw[None])
    assert len(points) == int(hits.valid.sum()) == len(semantic)
    # Every point lies on a surface of the scene.
    near = field.distance(torch.from_numpy(points), torch.ones(len(points), dtype=torch.int64))
    assert float(near.max()) < 1e-3


def small(path, count):
    with RecordingWriter(path) as writer:
        for number in range(count):
            writer.record(*encode(update(number + 1.0)), when=100.0 + number)
        return writer


@pytest.mark.slow
def test_long_recording_uses_little_memory_per_message(tmp_path):
    path, count = tmp_path / "long.navi", 20_000
    small(path, count)

    def peak(use):
        tracemalloc.start()
        try:
            kept = use()
            return tracemalloc.get_traced_memory()[1], kept
        finally:
            tracemalloc.stop()

    writing, writer = peak(lambda: RecordingWriter(path))
    writer.close()
    reading, recording = peak(lambda: Recording(path))
    playing, show = peak(lambda: ReplayShow(recording, "long"))
    with recording:
        assert writing < 200_000, f"{writing} bytes to find where it ends"
        # Lists and arrays are given more room than they need when they grow.
        assert reading < 48 * count + 200_000 and playing < 12 * count + 200_000, (reading, playing)
        assert len(recording.frames) == len(list(recording.frames)) == len(show._times) == count
        first, last = recording.frames[0], recording.frames[-1]
        assert (first.offset, first.time, last.time) == (len(NEWEST.magic), 100.0, 100.0 + count - 1)
        assert recording.frames[count - 1] == last and recording.message(last).step_id == count
        for place in (count, -count - 1):
            with pytest.raises(IndexError):
                recording.frames[place]


def test_kill_during_a_message_loses_only_that_message(tmp_path):
    path = tmp_path / "a.navi"
    small(path, 4)
    whole = path.read_bytes()
    with Recording(path) as recording:
        last = recording.frames[3].offset
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        with Recording(path) as recording:
            assert len(recording.frames) == 3 and recording.unfinished == end - last
    with RecordingWriter(path):
        assert path.stat().st_size == last
    path.write_bytes(whole[:-1])
    assert small(path, 1).cut == len(whole) - last - 1
    with Recording(path) as recording:
        assert len(recording.frames) == 4 and recording.unfinished == 0


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ((2**32 - 1, 10, 0, 4, 0, 1.0), "no frame begins at byte 8"),
        ((10, 2**32 - 1, 0, 4, 1, 1.0), "no frame begins"),
        ((10, 10, 0, 400, 0, 1.0), "no frame begins"),
        ((10, 10, 0, 0, 0, 1.0), "no frame begins"),
        ((10, 10, 0, 4, 7, 1.0), "no frame begins"),
        ((10, 12, 0, 4, 0, 1.0), "contradicts its own length"),
        ((10, 10, 0, 4, 1, 1.0), "contradicts its own length"),
        ((10, 10, 0, 4, 0, float("nan")), "has the time nan"),
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_lengths_are_checked_before_reading(tmp_path, head, reason, kind):
    path = tmp_path / "bad.navi"
    path.write_bytes(kind.magic + kind.head(*head) + b"x" * 10)
    with pytest.raises(RecordError, match=reason):
        Recording(path)


def test_body_expanding_beyond_its_length_is_refused(tmp_path):
    path = tmp_path / "bomb.navi"
    bomb = zlib.compress(bytes(50_000_000))
    path.write_bytes(NEWEST.magic + NEWEST.head(len(bomb), 2 * len(bomb), zlib.crc32(bomb), 18, 1, 1.0) + bomb)
    with Recording(path) as recording, pytest.raises(RecordError, match="another length"):
        recording.message(recording.frames[0])


def test_flipped_bit_is_reported_with_its_offset(tmp_path):
    path = tmp_path / "a.navi"
    small(path, 2)
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    with Recording(path) as recording:
        recording.message(recording.frames[0])
        with pytest.raises(RecordError, match=f"byte {recording.frames[1].offset} is damaged"):
            recording.message(recording.frames[1])


def test_messages_around_damage_are_still_shown(tmp_path):
    """A session of a day is not lost for one bit of it."""
    path = tmp_path / "a.navi"
    small(path, 5)
    whole = path.read_bytes()
    with Recording(path) as recording:
        second, fourth = recording.frames[1].offset, recording.frames[3].offset
    flags = fourth + 4 + 14
    for place in (second + NEWEST.size + 3, flags):
        data = bytearray(whole)
        data[place] ^= 255
        path.write_bytes(data)
        with Recording(path) as recording, served_page(ReplayShow(recording, "a")) as address:
            with page_client(address) as page:
                page.order(do="seek", at=1e6)
                facts = page.until("replay", lambda m: not m["playing"])["facts"]
            if place == flags:
                assert len(recording.frames) == 4 and f"byte {fourth}" in recording.damage
                assert "4 messages, damaged between them" in facts and recording.unfinished == 0
            else:
                assert "5 messages, 1 damaged ones left out" in facts and not recording.damage
                assert recording.readable_message(recording.frames[1]) is None and recording.damaged == 1
            list_episodes(recording)
    with pytest.raises(RecordError, match=f"byte {fourth}"):
        RecordingWriter(path)


@pytest.mark.parametrize("packed", [True, False])
def test_damaged_length_does_not_truncate_later_messages(tmp_path, packed, monkeypatch):
    """A length beyond the end of the file looks like an interrupted write."""
    if not packed:
        monkeypatch.setattr("navi_core.record.journal.zlib.compress", lambda raw, level: raw)
    path = tmp_path / "a.navi"
    small(path, 5)
    with Recording(path) as recording:
        second = recording.frames[1]
        assert second.packed == packed
    data = bytearray(path.read_bytes())
    data[second.offset + 4 + 2] ^= 1  # of the stored length, little-endian
    path.write_bytes(data)
    with pytest.raises(RecordError, match=f"byte {second.offset}"):
        RecordingWriter(path)
    assert path.read_bytes() == data
    with Recording(path) as recording:
        assert len(recording.frames) == 4 and f"byte {second.offset}" in recording.damage


@pytest.mark.slow
def test_damaged_head_changes_no_other_message(tmp_path):
    path = tmp_path / "a.navi"
    small(path, 5)
    whole = path.read_bytes()
    with Recording(path) as recording:
        expected = list(recording.messages())
        heads = [entry.offset for entry in recording.frames]
    for number, offset in enumerate(heads):
        for place in range(offset, offset + NEWEST.size):
            for bit in range(8):
                data = bytearray(whole)
                data[place] ^= 1 << bit
                path.write_bytes(data)
                with Recording(path) as recording:
                    found = [(entry.time, recording.message(entry).step_id) for entry in recording.frames]
                    assert found == [
                        (when, message.step_id) for when, message in expected[:number] + expected[number + 1 :]
                    ]
                    assert f"byte {offset}" in recording.damage
                    assert (recording.gaps, recording.broken_off) == ((0, True) if number == 4 else (1, False))


def test_damage_of_any_length_is_skipped(tmp_path):
    path = tmp_path / "a.navi"
    small(path, 2000)
    with Recording(path) as recording:
        offsets = [entry.offset for entry in recording.frames]
    data = bytearray(path.read_bytes())
    # More than is searched at once, with marks that are none, from within a message on.
    data[offsets[10] + 40 : offsets[1500] + 3] = b"\xf5MSG" * ((offsets[1500] + 3 - offsets[10] - 40) // 4)
    path.write_bytes(data)
    with Recording(path) as recording:
        times = [entry.time for entry in recording.frames]
        assert len(times) > 400 and recording.gaps == 1 and times[-1] == 100.0 + 1999
        assert f"byte {offsets[11]}; " in recording.damage


def test_a_mark_within_the_last_bytes_is_no_head(tmp_path):
    """The checksum of an empty head is 0."""
    path = tmp_path / "a.navi"
    small(path, 2)
    path.write_bytes(path.read_bytes() + bytes(50) + b"\xf5MSG" + bytes(4))
    with Recording(path) as recording:
        assert len(recording.frames) == 2 and recording.broken_off


@pytest.mark.parametrize("at_once", [1, 3, 7, 35, 36, 37, 70])
def test_message_head_is_found_across_search_blocks(tmp_path, monkeypatch, at_once):
    path = tmp_path / "a.navi"
    small(path, 4)
    with Recording(path) as recording:
        second, third = (recording.frames[number].offset for number in (1, 2))
    monkeypatch.setattr("navi_core.record.journal._SEARCH", at_once)
    data = bytearray(path.read_bytes())
    for place in range(second, third):
        damaged = data.copy()
        damaged[second : place + 1] = bytes(place + 1 - second)
        path.write_bytes(damaged)
        with Recording(path) as recording:
            assert [entry.time for entry in recording.frames] == [100.0, 102.0, 103.0]


def test_first_format_file_is_read_and_appended_to(tmp_path, monkeypatch):
    path = tmp_path / "old.navi"
    with monkeypatch.context() as patch:
        patch.setattr("navi_core.service.recordings.FORMATS", FORMATS[:1])
        small(path, 3)
    assert path.read_bytes().startswith(b"NAVIREC1")
    small(path, 2)
    with Recording(path) as recording:
        assert [message.step_id for _, message in recording.messages()] == [1, 2, 3, 1, 2] and not recording.damage
    data = bytearray(path.read_bytes())
    data[recording.frames[1].offset + 14] ^= 255
    path.write_bytes(data)
    with Recording(path) as recording:
        # Without marks nothing is found behind it.
        assert len(recording.frames) == 1 and recording.broken_off and "what lies before is kept" in recording.damage


def test_clock_set_back_keeps_episode_times_in_order(tmp_path):
    path = tmp_path / "a.navi"
    with RecordingWriter(path) as writer:
        for number in range(20):
            # Two hours back, amid the second episode.
            topic, payload = encode(replace(observation(), episode_id=number // 8, step_id=number))
            writer.record(topic, payload, 1.7e9 + number / 8 - (7200 if number >= 12 else 0))
    with Recording(path) as recording:
        assert recording.seconds == 19 / 8 - 1 / 8
        episodes = list_episodes(recording)
        assert [(one.began, one.ended) for one in episodes] == [(0.0, 0.875), (1.0, 1.75), (1.875, 2.25)]
        seconds = trace_episode(recording, episodes[1]).seconds
        assert seconds.tolist() == [1.0, 1.125, 1.25, 1.375, 1.375, 1.5, 1.625, 1.75]


def test_second_writer_of_a_recording_is_refused(tmp_path):
    path = tmp_path / "a.navi"
    with RecordingWriter(path):
        with pytest.raises(RecordError, match="in use by another process"):
            RecordingWriter(path)
        small(tmp_path / "b.navi", 2)
    assert small(path, 2).written == 2


@pytest.mark.parametrize("seconds", [math.nan, 0.0, -1.0])
def test_invalid_duration_is_refused_before_the_file_is_touched(tmp_path, seconds):
    with pytest.raises(ConfigError, match="cannot record for"):
        record_session(["tcp://127.0.0.1:1"], tmp_path / "a.navi", seconds=seconds)
    assert not list(tmp_path.iterdir())


def test_other_file_is_neither_read_nor_overwritten(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("dear reader")
    for opened in (Recording, RecordingWriter):
        with pytest.raises(RecordError, match="not a recording"):
            opened(path)
    assert path.read_text() == "dear reader"
    with pytest.raises(RecordError, match="navi record"):
        Recording(tmp_path / "none.navi")


def test_replay_shows_the_recording_and_seeks(session):
    path, seen = session
    with Recording(path) as recording:
        began = list_episodes(recording)[0].began
        last = max(m.step_id for _, m in recording.messages() if isinstance(m, DistanceMatrix))
        with served_page(ReplayShow(recording, "session")) as address, page_client(address) as page:
            frame = page.until("frame", lambda m: m["step"] == last)
            np.testing.assert_allclose(frame["depth"], denormalise_depth(seen[last][0][0], 100.0).numpy(), rtol=1e-6)
            page.until("replay", lambda m: not m["playing"])
            page.order(do="seek", at=began + 1e-3)
            page.until("frame", lambda m: m["step"] < last)
            page.until("status", lambda m: m["phase"] == "paused")
            page.order(do="seek", at="late")
            assert "no time" in page.until("refused")["reason"]


def test_an_episode_becomes_a_rerun_file(session, tmp_path):
    pytest.importorskip("rerun", reason="Rerun is not installed (pip install -e '.[rerun]')")
    path, _ = session
    out = tmp_path / "episode.rrd"
    done = CliRunner().invoke(build_app(plugins=False), ["replay", str(path), "--rrd", str(out), "--json"])
    assert done.exit_code == 0, done.exception
    rows = json.loads(done.stdout)["episodes"]
    assert out.read_bytes()[:4] == b"RRF2" and len(rows) == 1 and rows[0]["drone"] == 1
    with pytest.raises(NaviError, match="no episode 7"):
        CliRunner().invoke(
            build_app(plugins=False), ["replay", str(path), "--rrd", str(out), "--episode", "7"], catch_exceptions=False
        )


def test_recording_for_a_time_ends_by_itself(tmp_path):
    began = time.monotonic()
    done = record_session(["tcp://127.0.0.1:9"], tmp_path / "empty.navi", seconds=0.3)
    assert time.monotonic() - began < 5 and done.messages.total() == 0
