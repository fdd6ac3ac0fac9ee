"""Hardware profile, stage timer, actor statistics, TensorBoard, Navi home, import cost of the record room."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from navi_core.errors import SceneError
from navi_core.record import MetricLog, StageTimer, TensorBoardWriter, hardware_profile, navi_home, row_context
from navi_core.record.home import load_scenes
from navi_core.record.measurement import _cpu_model, _gpu_model
from navi_core.record.population import actor_statistics
from navi_core.scenes import FROZEN_HASHES


def test_the_profile_names_machine_versions_and_revision():
    profile = hardware_profile()
    assert profile["cores"] >= 1 and profile["memory_gib"] >= 1 and profile["cpu"] in profile["hardware"]
    assert {"python", "torch", "numpy"} <= set(profile["versions"])
    assert "revision" in profile


@pytest.mark.parametrize(("processor", "named"), [("", "aarch64"), ("Cortex", "Cortex")])
def test_cpu_without_a_model_name_is_named_by_its_architecture(monkeypatch, processor, named):
    monkeypatch.setattr(Path, "read_text", lambda _: "BogoMIPS: 50.00")  # as on ARM
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert _cpu_model() == named


def test_every_gpu_of_the_driver_is_named(monkeypatch, tmp_path):
    file = tmp_path / "information"
    file.write_text("Model: \t\t NVIDIA H100\nIRQ:   \t\t 1\n")
    monkeypatch.setattr(Path, "glob", lambda *_: [file, file, tmp_path / "gone"])
    assert _gpu_model() == "NVIDIA H100 + NVIDIA H100"


def test_return_spread_needs_two_actors():
    assert actor_statistics({}, {0: [1.0, 3.0], 1: []}) == {}
    assert actor_statistics({}, {0: [1.0, 3.0], 1: [6.0]}) == {"population_return_spread": 2.0}


def test_means_are_per_call_in_milliseconds():
    timer = StageTimer()
    timer.add("env", 0.010)
    timer.add("env", 0.030)
    with timer("sleep"):
        time.sleep(0.01)
    assert timer.means()["env"] == 20.0 and 10 <= timer.means()["sleep"] < 1000
    timer.reset()
    assert timer.means() == {}


class Mark:
    """A mark on the stream of a device whose clock is a counter."""

    clock, waits = 0.0, 0

    def record(self) -> None:
        Mark.clock += 2.0
        self.at = Mark.clock

    def synchronize(self) -> None:
        Mark.waits += 1

    def elapsed_time(self, later: "Mark") -> float:
        return later.at - self.at


def test_device_stages_are_timed_by_events_with_one_wait():
    timer = StageTimer(Mark)
    for _ in range(3):
        with timer("a"), timer("inside"):
            pass
    assert Mark.waits == 0
    assert timer.means() == pytest.approx({"a": 6.0, "inside": 2.0}) and timer.calls() == {"a": 3, "inside": 3}
    assert Mark.waits == 1


def test_timer_take_moves_the_measurements():
    one, two = StageTimer(), StageTimer()
    one.add("a", 1.0)
    two.add("a", 3.0)
    two.add("b", 5.0)
    one.take(two)
    assert one.means() == {"a": 2000.0, "b": 5000.0} and two.means() == {}
    assert one.calls() == {"a": 2, "b": 1} and two.calls() == two.totals() == {}


def test_tensorboard_receives_the_scalars_of_the_log(tmp_path):
    log = MetricLog(tmp_path / "outbox", "run", {})
    board = TensorBoardWriter(tmp_path / "tb")
    log.observe(board.scalars, board.close)
    log.scalars(10, {"reward_ema": 0.25})
    log.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward_ema")] == [(10, 0.25)]


def test_every_run_writes_tensorboard_files_and_a_resumed_one_shows_one_curve(tmp_path):
    """Learners get their log from the run's directory, so all of them write these files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from navi_core.config import TrainConfig
    from navi_core.record import RunDirectory

    for points in ((1, 2, 3), (3, 4)):
        run = RunDirectory.open(tmp_path, asset="a", partition="p", config=TrainConfig())
        with run, run.metric_log(tmp_path / "outbox") as log:
            for step in points:
                log.scalars(step, {"loss": float(10 * len(points) + step)})
    events = EventAccumulator(str(run.path / "tensorboard"), purge_orphaned_data=True)
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 31.0), (2, 32.0), (3, 23.0), (4, 24.0)]


def test_navi_home_is_the_variable_or_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "h"))
    assert navi_home() == tmp_path / "h"
    monkeypatch.delenv("NAVI_HOME")
    monkeypatch.chdir(tmp_path)
    assert navi_home() == tmp_path / ".navi"


def test_only_generated_scenes_are_compared_with_the_frozen_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "h"))
    monkeypatch.setitem(FROZEN_HASHES, "rooms_0001", "0" * 64)
    with pytest.raises(SceneError, match=r"rooms_0001 .* is frozen"):
        load_scenes(["rooms:1"], 16)
    mesh = tmp_path / "rooms_0001.obj"
    mesh.write_text("v 0 0 0\nv 4 0 0\nv 0 4 0\nv 0 0 4\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
    (scene,) = load_scenes([str(mesh)], 16)
    assert scene.name == "rooms_0001"


def test_importing_the_record_room_loads_no_heavy_package():
    code = (
        "import sys, navi_core.record\n"
        "heavy = {'torch', 'numpy', 'pandas', 'duckdb', 'dagster', 'tensorboard'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_rows_name_host_user_and_dagster_run(monkeypatch):
    monkeypatch.setenv("NAVI_HOST", "alpha")
    monkeypatch.setenv("NAVI_DAGSTER_RUN_ID", "d-1")
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(KeyError("uid")))
    context = row_context()
    assert (context["host"], context["dagster_run_id"], context["user"]) == ("alpha", "d-1", str(os.getuid()))
    monkeypatch.undo()
    assert row_context()["host"] and row_context()["user"]
