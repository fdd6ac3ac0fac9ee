"""The history of a run, read from its folder while it grows."""

from __future__ import annotations

import json

import pytest

from navi_core.record import RunDirectory, TensorBoardWriter, run_history
from navi_core.record.run_history import RunHistory, listed_runs
from tests.learn.builders import small_config


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    return tmp_path


def opened(home, **settings):
    config = small_config(**settings)
    return RunDirectory.open(home / "runs", asset="interactive", partition="quick", config=config)


def write(board, steps):
    for step in steps:
        board.scalars(step, {"reward_ema": step / 100.0, "sps": 50.0})
    board._writer.flush()


def test_curve_grows_with_the_file_and_a_resumed_run_is_one_curve(home):
    with opened(home, total_steps=1000) as run:
        history, board = RunHistory.of(run.run_id), TensorBoardWriter(run.path / "tensorboard")
        assert not history.read() and history.facts()["seconds_left"] is None
        write(board, (100, 200, 300))
        assert history.read() and not history.read()
        write(board, (400,))
        assert history.read() and history.curve.steps == [100, 200, 300, 400]
        again = TensorBoardWriter(run.path / "tensorboard")
        write(again, (300, 500))
        assert history.read() and history.curve.steps == [100, 200, 300, 500]
        assert history.curve.series["reward_ema"] == pytest.approx([1, 2, 3, 5])
        facts = history.facts()
        # Six rollouts of 192 decisions reach 1,000.
        assert (facts["step"], facts["total"]) == (500, 1152)
        assert (facts["percent"], facts["seconds_left"]) == pytest.approx((100 * 500 / 1152, 652 / 50))
        assert (facts["preset"], facts["algorithm"]) == ("quick", "ppo")


def test_a_board_is_whole_when_it_is_closed_and_a_run_begun_anew_is_another_curve(home):
    with opened(home) as run:
        history, folder = RunHistory.of(run.run_id), run.path / "tensorboard"
        for start in (100, 1000):
            board = TensorBoardWriter(folder)
            board.scalars(start, {"sps": 1.0})
            board.scalars(start + 100, {"sps": 2.0})
            board.close()
        assert history.read() and history.curve.steps == [100, 200, 1000, 1100]
        first, _ = sorted(folder.iterdir())
        first.write_bytes(first.read_bytes()[:-1])
        assert history.read() and history.curve.steps == [100, 1000, 1100]


def test_a_record_that_is_not_whole_yet_is_read_later(home):
    with opened(home) as run:
        board = TensorBoardWriter(run.path / "tensorboard")
        write(board, (100, 200))
        (file,) = (run.path / "tensorboard").iterdir()
        whole = file.read_bytes()
        history = RunHistory.of(run.run_id)
        file.write_bytes(whole[:-7])
        assert history.read() and history.curve.series["sps"] == [50.0, None]
        file.write_bytes(whole)
        assert history.read() and history.curve.series["sps"] == [50.0, 50.0]


def test_updates_of_a_long_file_are_thinned(home, monkeypatch):
    with opened(home) as run:
        write(TensorBoardWriter(run.path / "tensorboard"), range(100, 10_100, 100))
        monkeypatch.setattr(run_history, "_WHOLE_BYTES", 2000)
        history = RunHistory.of(run.run_id)
        assert history.read()
        steps = history.curve.steps
        assert 10 <= len(steps) < 60 and all(value == pytest.approx(step / 100.0) for step, value in
                                             zip(steps, history.curve.series["reward_ema"], strict=True))  # fmt: skip


def test_running_finished_stopped_and_crashed_runs_are_told_apart(home):
    run = opened(home)
    history = RunHistory.of(run.run_id)
    run.write_status("running", scenes=["house"], parent="v003")
    facts = history.facts()
    assert (facts["state"], facts["scenes"], facts["parent"]) == ("running", ["house"], "v003")
    # The lock of a killed process is free.
    run.close()
    assert history.facts()["state"] == "crashed"
    for state in ("finished", "stopped"):
        run.write_status(state, reason="SIGINT")
        assert (history.facts()["state"], history.facts()["reason"]) == (state, "SIGINT")
    assert listed_runs() == {run.run_id: "stopped"}
    (run.path / "status.json").unlink()
    assert history.facts()["state"] == "refused", "its training never began"
    write(TensorBoardWriter(run.path / "tensorboard"), [100])
    assert history.facts()["state"] == "stopped", "a run of an earlier version, without a status file"
    (run.path / "config.json").write_text(json.dumps([]))
    assert RunHistory.of(run.run_id).facts()["state"] is None
