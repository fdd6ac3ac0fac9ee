"""Hardware profile, stage timer, TensorBoard, import cost of the record room."""

import subprocess
import sys
import time

from navi_core.record import MetricLog, StageTimer, TensorBoardWriter, hardware_profile, navi_home


def test_the_profile_names_machine_versions_and_revision():
    profile = hardware_profile()
    assert profile["cores"] >= 1 and profile["memory_gib"] >= 1 and profile["cpu"] in profile["hardware"]
    assert {"python", "torch", "numpy"} <= set(profile["versions"])
    assert "revision" in profile


def test_means_are_per_call_in_milliseconds():
    timer = StageTimer()
    timer.add("env", 0.010)
    timer.add("env", 0.030)
    with timer("sleep"):
        time.sleep(0.01)
    assert timer.means()["env"] == 20.0 and 10 <= timer.means()["sleep"] < 1000
    timer.reset()
    assert timer.means() == {}


def test_a_synchronised_timer_waits_before_each_clock_reading():
    calls = []
    timer = StageTimer(synchronize=lambda: calls.append(1))
    with timer("a"):
        pass
    assert len(calls) == 2


def test_tensorboard_receives_the_scalars_of_the_log(tmp_path):
    log = MetricLog(tmp_path / "outbox", "run", {})
    writer = TensorBoardWriter(tmp_path / "tb").attach(log)
    log.scalars(10, {"reward_ema": 0.25})
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward_ema")] == [(10, 0.25)]


def test_home_is_the_variable_or_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "h"))
    assert navi_home() == tmp_path / "h"
    monkeypatch.delenv("NAVI_HOME")
    monkeypatch.chdir(tmp_path)
    assert navi_home() == tmp_path / ".navi"


def test_importing_the_record_room_loads_no_heavy_package():
    code = (
        "import sys, navi_core.record\n"
        "heavy = {'torch', 'numpy', 'pandas', 'duckdb', 'dagster', 'tensorboard'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
