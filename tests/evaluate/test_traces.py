"""Episodes of an evaluation for the Rerun viewer: their selection, poses and surroundings."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError, RecordError
from navi_core.evaluate import evaluate, write_traces
from navi_core.evaluate.pictures import episode_trace, representative_episodes
from navi_core.evaluate.result import EvalResult
from navi_core.world import Field


def result_of(values):
    rows = [{"scene": "box", "start": place, "c_vis_auc": value} for place, value in enumerate(values)]
    return EvalResult("s", EvalConfig(), rows, {}, trajectories=[np.zeros((2, 3))] * len(values))


@pytest.mark.parametrize(
    ("values", "median", "worst"), [([5.0, 1.0, 3.0], 2, 1), ([5.0, 1.0, 3.0, 4.0], 2, 1), ([7.0], 0, 0)]
)
def test_representative_episodes_are_lower_median_and_worst(values, median, worst):
    assert representative_episodes(result_of(values)) == {"median": median, "worst": worst}


def test_result_without_paths_is_refused():
    with pytest.raises(EvaluationError, match="keeps no paths"):
        representative_episodes(EvalResult("s", EvalConfig(), [], {}))


def test_a_trace_shows_the_poses_flown_and_the_walls_around_them(box_room):
    result = evaluate("forward-plus", [box_room], EvalConfig(starts=1, max_steps=6))
    trace = episode_trace(result, 0, Field([box_room]), 0)
    np.testing.assert_array_equal(trace.positions, result.trajectories[0])
    assert trace.yaws.shape == (7,) and trace.valid.all()
    assert len(trace.mesh.faces) == len(box_room.triangles)
    field = Field([box_room])
    for moment in range(7):
        points, _ = trace.points(moment)
        near = field.distance(torch.from_numpy(points), torch.zeros(len(points), dtype=torch.int64))
        assert float(near.max()) < 1e-3


def test_an_evaluation_writes_its_median_and_its_worst_episode(tmp_path):
    pytest.importorskip("rerun", reason="Rerun is not installed (pip install -e '.[rerun]')")
    command = ["evaluate", "random", "--scene", "apartment:9003", "--starts", "2", "--steps", "4", "--resolution", "64"]
    done = CliRunner().invoke(build_app(), [*command, "--rrd", str(tmp_path / "rrd"), "--json"])
    assert done.exit_code == 0, done.exception
    assert len(json.loads(done.stdout)["episodes"]) == 2
    for word in ("median", "worst"):
        data = (tmp_path / "rrd" / f"random-{word}.rrd").read_bytes()
        assert data.startswith(b"RRF2") and b"world/scene" in data


def test_written_traces_are_returned(box_room, tmp_path):
    pytest.importorskip("rerun", reason="Rerun is not installed (pip install -e '.[rerun]')")
    result = evaluate("random", [box_room], EvalConfig(starts=1, max_steps=2), name="a/b")
    files = write_traces(tmp_path, result, [box_room])
    assert files == [tmp_path / "a_b-median.rrd", tmp_path / "a_b-worst.rrd"] and all(file.is_file() for file in files)


def test_missing_rerun_is_reported_before_the_flight(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    monkeypatch.setattr("navi_core.cli.evaluate.fly_subject", lambda *_: pytest.fail("it flew"))
    done = CliRunner().invoke(build_app(), ["evaluate", "random", "--rrd", str(tmp_path)])
    assert isinstance(done.exception, RecordError) and "pip install -e '.[rerun]'" in str(done.exception)
