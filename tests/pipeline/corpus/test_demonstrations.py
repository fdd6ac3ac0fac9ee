"""Demonstrations: recordings, the teacher's flights, and the dataset gathered from both."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from navi_core.demos import Demonstration, index_folder, load_dataset, save_demonstration
from navi_core.errors import DemoError, RecordError
from navi_core.record import navi_home
from navi_pipeline.defs.demonstrations import recordings_are_good
from navi_pipeline.lib.corpus.demonstrations import (
    _path,
    action_statistics,
    expert_config,
    gather_demonstrations,
    take_recordings,
)
from navi_pipeline.lib.records import write_document


def recording(seed, azimuth=64, elevation=16):
    rng = np.random.default_rng(seed)
    starts = np.zeros(6, bool)
    starts[[0, 3]] = True
    return Demonstration(
        observations=rng.random((6, 3, azimuth, elevation), np.float32).round(),
        actions=rng.uniform(-1, 1, (6, 4)).astype(np.float32),
        episode_starts=starts,
        scene=f"scene{seed}",
        decision_hz=10.0,
        limits=(5.0, 2.0, 3.0, 3.0),
        recording_date="2026-01-01T00:00:00Z",
    )


@pytest.fixture
def recordings():
    folder = navi_home() / "recordings"
    folder.mkdir(parents=True)
    save_demonstration(folder / "good.npz", recording(1))
    return folder


@pytest.fixture
def expert():
    """A teacher's dataset as `expert_demonstrations` leaves it, of one file."""
    folder = navi_home() / "demos" / "expert"
    folder.mkdir(parents=True)
    save_demonstration(folder / "a.npz", recording(2))
    index_folder(folder, ["a.npz"])
    write_document(_path("expert", "quick"), {"folder": str(folder), "rows": []})


def test_missing_recordings_give_an_empty_dataset_that_passes():
    assert take_recordings() == {"folder": None, "files": 0, "decisions": 0, "content_hash": None, "rows": []}
    assert recordings_are_good().passed


def test_recorded_demonstrations_refuses_only_broken_files(recordings):
    (recordings / "broken.npz").write_bytes(b"no archive")
    made = take_recordings()
    assert (made["files"], made["decisions"]) == (1, 6)
    assert [row["file"] for row in made["rows"] if not row["accepted"]] == ["broken.npz"]
    outcome = recordings_are_good()
    assert not outcome.passed and "broken.npz" in outcome.description
    assert take_recordings() == made


@pytest.mark.parametrize("names", [("broken.npz",), ("a.npz", "b.npz"), ()])
def test_folder_without_valid_recordings_names_each_refused_file(names, tmp_path, monkeypatch, expert):
    monkeypatch.setenv("NAVI_DEMOS", str(tmp_path / "demos"))
    (tmp_path / "demos").mkdir()
    for name in names:
        (tmp_path / "demos" / name).write_bytes(b"no archive")
    made = take_recordings()
    assert made["folder"] is None and made["files"] == 0
    outcome = recordings_are_good()
    assert all(name in outcome.description for name in names) and outcome.passed == (not names)
    assert gather_demonstrations("quick")["decisions"] == 6
    save_demonstration(tmp_path / "demos" / "good.npz", recording(1))
    assert take_recordings()["files"] == 1


def test_new_recording_changes_the_dataset_hash(recordings):
    first = take_recordings()
    save_demonstration(recordings / "more.npz", recording(3))
    second = take_recordings()
    assert second["files"] == 2 and second["content_hash"] != first["content_hash"]


def test_recorded_demonstrations_follows_added_and_removed_files(recordings):
    save_demonstration(recordings / "july" / "one.npz", recording(5))
    first = take_recordings()
    assert first["files"] == 2
    save_demonstration(recordings / "july" / "two.npz", recording(6))
    (recordings / "good.npz").unlink()
    second = take_recordings()
    # An unchanged recording is the same file in both datasets.
    one, two = (Path(made["folder"]) / "july-one.npz" for made in (first, second))
    assert second["files"] == 2 and one.samefile(two)
    shutil.rmtree(recordings / "july")
    assert take_recordings()["folder"] is None
    save_demonstration(recordings / "good.npz", recording(1))
    assert take_recordings()["files"] == 1


def test_recordings_with_another_decision_rate_are_left_out(recordings, expert):
    save_demonstration(recordings / "good.npz", replace(recording(1), decision_hz=20.0))
    take_recordings()
    made = gather_demonstrations("quick")
    assert (made["decisions"], made["left_out"]) == (6, 1)
    assert [row["differs"] for row in made["rows"]] == ["", "decision_hz"]
    load_dataset([Path(folder) for folder in made["folders"]])


def test_gathering_joins_both_sources_of_equal_resolution(recordings, expert):
    take_recordings()
    both = gather_demonstrations("quick")
    assert (both["decisions"], both["episodes"], both["scenes"], both["left_out"]) == (12, 4, 2, 0)
    save_demonstration(recordings / "good.npz", recording(4, 32, 8))
    take_recordings()
    alone = gather_demonstrations("quick")
    assert (alone["decisions"], alone["left_out"]) == (6, 1) and alone["content_hash"] != both["content_hash"]
    rows, actions, first = action_statistics(both["folders"])
    assert [row["axis"] for row in rows] == ["forward", "vertical", "lateral", "yaw"]
    assert len(actions["yaw"]) == 12 and first.shape == (3, 64, 16)
    assert rows[0]["mean"] == pytest.approx(float(actions["forward"].mean()))


def test_expert_config_takes_the_sensor_of_the_profile():
    assert (expert_config("standard").azimuth_bins, expert_config("standard").elevation_bins) == (256, 48)
    assert expert_config("quick", episodes=2).episodes == 2


def test_missing_folder_and_dataset_errors_name_them(monkeypatch, tmp_path):
    monkeypatch.setenv("NAVI_DEMOS", str(tmp_path / "none"))
    with pytest.raises(DemoError, match="NAVI_DEMOS"):
        take_recordings()
    with pytest.raises(RecordError, match="recorded_demonstrations"):
        gather_demonstrations("quick")
