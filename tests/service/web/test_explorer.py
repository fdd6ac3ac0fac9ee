"""Explorer: recorded flights hold what a policy would observe, and undo leaves no trace."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import ExplorerConfig
from navi_core.demos import dataset, load_dataset, load_demonstration
from navi_core.errors import ConfigError, DemoError
from navi_core.machine import file_lock
from navi_core.record.journal import FrameFormat, Journal
from navi_core.scenes import load_gmdag
from navi_core.service.explorer import flight_journal
from navi_core.service.explorer.session import ExplorerSession, SceneChoice
from tests.conftest import box_triangles

SMALL = ExplorerConfig(azimuth_bins=16, elevation_bins=8, sharp_bins=(32, 8))
AHEAD, TURN, HOVER = (0.4, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.5), (0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def choices(apartments):
    return [SceneChoice(scene.name, lambda scene=scene: scene) for scene in apartments]


@pytest.fixture
def session(choices, tmp_path):
    return ExplorerSession(choices, SMALL, tmp_path / "flights")


def test_recorded_flight_pairs_observations_with_commands(session):
    session.fly(AHEAD)
    session.record()
    seen, flown = [], []
    for command in (AHEAD, TURN, TURN, AHEAD):
        seen.append(session.observation.copy())
        flown.append(command)
        session.fly(command)
    demo = load_demonstration(session.finish())
    np.testing.assert_array_equal(demo.observations, np.stack(seen))
    np.testing.assert_array_equal(demo.actions, np.array(flown, np.float32))
    assert demo.pilot == "person" and demo.scene_hash == session.scene.content_hash()
    assert demo.source_hash == session.scene.source_hash != ""
    assert demo.episode_starts.tolist() == [True, False, False, False]


def test_undone_decisions_are_not_saved(choices, tmp_path):
    flights = [ExplorerSession(choices, SMALL, tmp_path / name) for name in ("straight", "detour")]
    straight, detour = flights
    for session in flights:
        session.record()
        for _ in range(45):
            session.fly(TURN)
    for _ in range(20):
        detour.fly((1.0, 0.3, -0.5, 0.2))
    assert detour.undo(20) == 20
    for session in flights:
        for _ in range(5):
            session.fly(AHEAD)
    one, two = (load_demonstration(session.finish()) for session in flights)
    assert one.content_hash() == two.content_hash()
    assert straight.trajectory == detour.trajectory and straight.seen_share() == detour.seen_share()


def test_undo_stops_at_the_beginning_of_the_recording(session):
    for _ in range(10):
        session.fly(AHEAD)
    session.record()
    for _ in range(4):
        session.fly(TURN)
    assert session.undo(100) == 4 and session.undo() == 0
    assert len(session.recording) == 0
    session.discard()
    assert session.undo(100) == 10
    brief = ExplorerSession(session.choices, SMALL.model_copy(update={"undo_decisions": 3}), session.folder)
    for _ in range(5):
        brief.fly(TURN)
    assert (brief.undo(), brief.undo()) == (3, 2)


def recording(choices, folder, decisions):
    """A session that has recorded as many decisions straight ahead, and still does."""
    session = ExplorerSession(choices, SMALL, folder)
    session.record()
    for _ in range(decisions):
        session.fly(AHEAD)
    return session


def kill(session):
    """Do what a kill does to a session: its files are closed as they are, and their locks go."""
    os.close(session.recording._writer._descriptor)


def test_flight_of_a_killed_explorer_is_recovered(choices, tmp_path):
    killed, whole = (ExplorerSession(choices, SMALL, tmp_path / name) for name in ("killed", "whole"))
    for session in (killed, whole):
        session.fly(AHEAD)
        session.record()
        for _ in range(6):
            session.fly(TURN)
        assert session.undo(2) == 2
        session.fly(AHEAD)
    assert ExplorerSession(choices, SMALL, tmp_path / "killed").recovered == []  # of one that lives
    kill(killed)
    after = ExplorerSession(choices, SMALL, tmp_path / "killed")
    (file,) = after.recovered
    demo, expected = load_demonstration(file), load_demonstration(whole.finish())
    assert demo.content_hash() == expected.content_hash() and len(demo.actions) == 5
    assert (demo.pilot, demo.limits, demo.source_hash) == (expected.pilot, expected.limits, expected.source_hash)
    assert after.progress()[0]["flights"] == 1 and len(load_dataset([tmp_path / "killed"])) == 5
    for name in ("killed", "whole"):
        assert not list((tmp_path / name).glob(".*"))


def test_recovered_flight_that_cannot_be_saved_raises_and_keeps_its_journal(choices, tmp_path, monkeypatch):
    session = recording(choices, tmp_path, 3)
    kill(session)

    def full(*_: object) -> Path:
        raise DemoError("no space left on device", path=tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(ExplorerSession, "_save", full)
        with pytest.raises(DemoError, match="no space left"):
            ExplorerSession(choices, SMALL, tmp_path)
    assert len(ExplorerSession(choices, SMALL, tmp_path).recovered) == 1


def test_flight_is_saved_once_after_a_kill_during_saving(choices, tmp_path, monkeypatch):
    session = recording(choices, tmp_path, 3)
    # Killed between the saving and the end of the journal.
    monkeypatch.setattr(session, "discard", lambda: None)
    session.finish()
    kill(session)
    assert ExplorerSession(choices, SMALL, tmp_path).recovered == []
    assert [path.suffix for path in tmp_path.iterdir() if path.name != "index.json"] == [".npz"]


def test_journal_keeps_whole_decisions_after_a_kill(choices, tmp_path):
    session = recording(choices, tmp_path, 5)
    kill(session)
    (journal,) = tmp_path.glob(".*.flight")
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-7])
    (file,) = ExplorerSession(choices, SMALL, tmp_path).recovered
    assert len(load_demonstration(file).actions) == 4
    for number, broken in enumerate(
        (b"", b"NAVIFLY2" + b"\xff" * 8, whole[:40], whole.replace(b"[16", b"[-6"), whole.replace(b"10.0", b"70.0"))
    ):
        (tmp_path / f".{number}.flight").write_bytes(broken)
    # A file that is no journal is reported and kept.
    assert b"10.0" in whole and ExplorerSession(choices, SMALL, tmp_path).recovered == []
    assert len(list(tmp_path.glob(".*.flight"))) == 5


def test_damaged_journal_is_reported_and_loses_no_whole_decision(choices, tmp_path, caplog):
    session = recording(choices, tmp_path, 6)
    kill(session)
    (journal,) = tmp_path.glob(".*.flight")
    whole = journal.read_bytes()
    with Journal(journal, (FrameFormat(b"NAVIFLY2"),), kind="journal", max_bytes=2**24) as read:
        offsets = [frame.offset for frame in list(read.frames)[1:]]
    for damaged, kept in ((0, 0), (1, 0), (4, 4)):
        data = bytearray(whole)
        data[offsets[damaged] + 50] ^= 1
        journal.write_bytes(data)
        caplog.clear()
        recovered = ExplorerSession(choices, SMALL, tmp_path).recovered
        assert sum(len(load_demonstration(file).actions) for file in recovered) == kept
        assert journal.exists() == (not kept) and "damaged" in caplog.text
    assert "the last 2 decisions are lost" in caplog.text


def test_flight_saved_during_a_recovery_is_kept_once(choices, tmp_path, monkeypatch):
    session = recording(choices, tmp_path, 3)
    lock = file_lock.fcntl.flock

    def late(file, kind):
        session.finish()  # between the opening of its journal and the lock
        lock(file, kind)

    monkeypatch.setattr(file_lock.fcntl, "flock", late)
    assert ExplorerSession(choices, SMALL, tmp_path).recovered == []
    assert len(list(tmp_path.glob("*.npz"))) == 1


def test_half_written_files_of_killed_explorers_are_removed(choices, tmp_path, monkeypatch):
    def killed(*names, **named):
        raise KeyboardInterrupt

    def stays(*names, **named):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    session = recording(choices, tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        patch.setattr(os, "rename", killed)
        patch.setattr(Path, "unlink", stays)
        with pytest.raises(KeyboardInterrupt):
            session.finish()
        with pytest.raises(DemoError):
            flight_journal.FlightJournal(tmp_path, {})
    left = [file for file in tmp_path.glob(".*") if file.suffix != ".flight"]
    assert len(left) == 2
    for file in left:
        os.utime(file, (1, 1))
    saved = session.finish()
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["index.json", saved.name])


def test_flight_continues_with_a_full_journal_disk(choices, tmp_path, monkeypatch):
    session = ExplorerSession(choices, SMALL, tmp_path)
    session.record()
    session.fly(AHEAD)
    write, room = os.pwrite, [100]

    def full(file, data, at):
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(file, data[: room[0]], at)
        room[0] -= done
        return done

    monkeypatch.setattr(os, "pwrite", full)
    session.fly(TURN)
    session.fly(TURN)
    room[0] = 2**20
    session.fly(AHEAD)
    kill(session)
    (file,) = ExplorerSession(choices, SMALL, tmp_path).recovered
    np.testing.assert_array_equal(load_demonstration(file).actions, np.float32([AHEAD, TURN, TURN, AHEAD]))


def test_read_only_folder_is_reported_before_the_flight(choices, tmp_path, monkeypatch):
    session = ExplorerSession(choices, SMALL, tmp_path)

    def refuse(*args):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(DemoError, match="Read-only file system"):
        session.record()
    assert session.recording is None and not list(tmp_path.iterdir())


def test_paused_session_does_not_move(session):
    session.record()
    session.fly(AHEAD)
    session.paused = True
    pose = session.pose()
    assert not session.fly(AHEAD)
    assert session.pose() == pose and len(session.recording) == 1


def test_progress_lists_flights_and_decisions_of_each_scene(session, choices):
    for number in range(2):
        session.open(number)
        session.record()
        for _ in range(3 + number):
            session.fly(TURN)
    session.finish()
    rows = session.progress()
    assert [(row["flights"], row["decisions"]) for row in rows] == [(1, 3), (1, 4)]
    again = ExplorerSession(choices, SMALL, session.folder)
    assert again.progress() == [dict(row) for row in rows]
    data = load_dataset([session.folder])
    assert len(data) == 7 and len(data.episodes) == 2
    with pytest.raises(ConfigError, match="there are 2"):
        session.open(2)


def test_flight_at_its_decision_limit_is_saved(choices, tmp_path):
    session = ExplorerSession(choices, SMALL.model_copy(update={"max_decisions": 3}), tmp_path)
    session.record()
    for _ in range(5):
        session.fly(HOVER)
    assert len(load_demonstration(session.saved[0]).actions) == 3 and session.recording is None


def test_a_flight_of_one_decision_is_not_saved(session):
    session.record()
    session.fly(AHEAD)
    assert session.finish() is None and session.saved == []


@pytest.mark.parametrize("command", [(1.0,), (0.0, 0.0, 0.0, math.nan), (0.0, 0.0, math.inf, 0.0)])
def test_invalid_command_is_refused_without_motion(session, command):
    pose = session.pose()
    with pytest.raises(ConfigError, match="four finite numbers"):
        session.fly(command)
    assert session.pose() == pose


def test_recording_without_a_folder_names_the_option(choices):
    with pytest.raises(ConfigError, match="--record"):
        ExplorerSession(choices, SMALL).record()


def test_saving_rereads_only_changed_flights(session, monkeypatch):
    """A folder of hundreds of flights is read once, not for every flight that is added."""
    names = []
    for _ in range(2):
        session.record()
        for _ in range(3):
            session.fly(AHEAD)
        names.append(session.finish().name)
    read = []
    real = load_demonstration
    monkeypatch.setattr(dataset, "load_demonstration", lambda path: read.append(path.name) or real(path))
    (session.folder / names[0]).write_bytes((session.folder / names[1]).read_bytes())
    session.record()
    for _ in range(3):
        session.fly(TURN)
    third = session.finish().name
    assert read == [names[0], third]
    rows = json.loads((session.folder / "index.json").read_text())["files"]
    assert len(rows) == 3 and rows[0]["content_hash"] == rows[1]["content_hash"] != rows[2]["content_hash"]


def test_a_folder_of_another_sensor_is_refused(session, choices):
    session.record()
    session.fly(AHEAD)
    session.fly(AHEAD)
    session.finish()
    with pytest.raises(DemoError, match="16x8"):
        ExplorerSession(choices, SMALL.model_copy(update={"azimuth_bins": 32}), session.folder)


def test_a_recorded_flight_trains_a_clone(session, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    for number in range(2):
        session.open(number)
        session.record()
        for step in range(24):
            session.fly(TURN if step % 8 == 0 else AHEAD)
    session.finish()
    command = ["bc", "--demos", str(session.folder), "--preset", "quick", "--epochs", "2", "--json"]
    for setting in ("bc.bptt=8", "bc.sequences=2", "threads=1", "device=cpu"):
        command += ["--set", setting]
    done = CliRunner().invoke(build_app(groups=("training.bc",), plugins=False), command)
    assert done.exit_code == 0, (done.output, done.exception)
    record = json.loads(done.stdout)
    assert record["decisions"] == 48 and record["version"] == "v001"
    assert np.isfinite(record["metrics"]["nll"])


@pytest.mark.parametrize("name", ["../../elsewhere", "/tmp/elsewhere", "upper/floor", "x" * 400, "a\0b", ".", "台所"])
def test_flights_of_any_scene_name_stay_in_the_folder(apartments, tmp_path, name):
    """Scene names come from files of unknown origin."""
    scene = load_gmdag(replace(apartments[0], name=name).save(tmp_path / "scene.gmdag"))
    folder = tmp_path / "deep" / "flights"
    session = ExplorerSession([SceneChoice("scene", lambda: scene)], SMALL, folder)
    for _ in range(2):
        session.record()
        session.fly(AHEAD)
        session.fly(TURN)
        session.finish()
    files = sorted(path for path in tmp_path.rglob("*.npz"))
    assert len(files) == 2 and all(path.parent == folder for path in files)
    assert session.progress()[0] == {"scene": name, "flights": 2, "decisions": 4}


def test_the_command_flies_a_compiled_file_and_records(apartments, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("navi_core.cli.pages.open_page", lambda show, *address: shown.append(show))
    path = apartments[0].save(tmp_path / "flat.gmdag")
    command = ["explore", "--gmdag-file", str(path), "--record", str(tmp_path / "flights"), "--azimuth-bins", "16",
               "--elevation-bins", "8"]  # fmt: skip
    done = CliRunner().invoke(build_app(groups=("pages",), plugins=False), command)
    assert done.exit_code == 0, (done.output, done.exception)
    session = shown[0].session
    session.record()
    session.fly(AHEAD)
    session.fly(TURN)
    flight = load_demonstration(session.finish())
    assert len(flight.actions) == 2 and flight.scene == apartments[0].name


def test_the_command_walks_through_a_folder_of_meshes(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("navi_core.cli.pages.open_page", lambda show, *address: shown.append(show))
    corners = box_triangles((0, 0, 0), (6, 3, 5)).reshape(-1, 3)
    lines = [f"v {x} {y} {z}" for x, y, z in corners] + [f"f {i} {i + 1} {i + 2}" for i in range(1, len(corners), 3)]
    (tmp_path / "scans").mkdir()
    for name in ("hall", "loft"):
        (tmp_path / "scans" / f"{name}.obj").write_text("\n".join(lines))
    command = ["explore", str(tmp_path / "scans"), "--resolution", "64"]
    done = CliRunner().invoke(build_app(groups=("pages",), plugins=False), command)
    assert done.exit_code == 0, (done.output, done.exception)
    assert [choice.name for choice in shown[0].session.choices] == ["hall", "loft"]
