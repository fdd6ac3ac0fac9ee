"""GPUs: each training holds one of its own, and the pool of runs is as large as their number."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from navi_core.machine.devices import hold_device, usable_devices
from navi_core.machine.file_lock import is_locked
from navi_core.record import navi_home
from navi_pipeline.lib.training.supervised import run_supervised

ROOT = Path(__file__).resolve().parents[2]
TRAINER = """
import os, sys, time
print(os.environ["CUDA_VISIBLE_DEVICES"], file=sys.stderr, flush=True)
for _ in range(600):
    if os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""
"""Child that shows its GPU, and ends once a file exists."""


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def machine(monkeypatch):
    """Return a function that gives this machine made-up GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda devices: monkeypatch.setenv("NAVI_DEVICES", devices)


def free(folder, **given):
    return hold_device(folder, report=given.get("report", lambda _: None), ending=given.get("ending", lambda: False))


@pytest.mark.parametrize(
    ("named", "visible", "devices"),
    [("0,1", "5", ["0", "1"]), (None, "GPU-a,GPU-b", ["GPU-a", "GPU-b"]), (None, "-1", []), ("", "3", []),
     (" 2 ,2", None, ["2", "2"])],
)  # fmt: skip
def test_devices_are_those_of_the_setting_else_the_visible_ones(monkeypatch, named, visible, devices):
    for variable, value in {"NAVI_DEVICES": named, "CUDA_VISIBLE_DEVICES": visible}.items():
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert usable_devices() == devices


def test_eight_trainings_get_eight_different_devices_and_the_ninth_waits(machine, tmp_path):
    machine("0,1,2,3,4,5,6,7")
    seen, waits = [], []

    def train(_):
        command = [sys.executable, "-c", TRAINER, str(tmp_path / "go")]
        return run_supervised(
            command, on_line=lambda line: (waits if " " in line else seen).append(line), on_device=True
        )

    with ThreadPoolExecutor(9) as pool:
        ended = [pool.submit(train, number) for number in range(9)]
        until(lambda: len(seen) == 8 and waits)
        assert sorted(seen) == list("01234567")
        assert waits == ["waiting for a GPU: all 8 are taken (NAVI_DEVICES names them)"]
        (tmp_path / "go").touch()
        assert [future.result()[0] for future in ended] == [0] * 9
    assert len(seen) == 9


def test_device_named_twice_takes_two_trainings(machine, tmp_path):
    machine("3,3")
    with free(tmp_path) as (first, _), free(tmp_path) as (second, _):
        assert first["CUDA_VISIBLE_DEVICES"] == second["CUDA_VISIBLE_DEVICES"] == "3"
        with free(tmp_path, ending=lambda: True) as third:
            assert third == ({}, ())


def test_without_a_gpu_a_training_takes_none_and_waits_for_nobody(machine, tmp_path):
    machine("")
    with free(tmp_path) as first, free(tmp_path) as second:
        assert first == second == ({}, ())
    assert not list(tmp_path.iterdir())


def test_device_stays_taken_while_the_child_of_a_killed_supervisor_checkpoints(machine, tmp_path):
    """The supervisor is killed; its trainer ignores SIGTERM, as one that writes a checkpoint does for a while."""
    machine("0")
    trainer = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{TRAINER}"
    code = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from navi_pipeline.lib.training.supervised import run_supervised\n"
        f"run_supervised([sys.executable, '-c', {trainer!r}, sys.argv[1]], on_line=lambda x: print(x, flush=True), "
        "on_device=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "go")], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout.readline() == b"0\n"
        supervisor.kill()
    (lock,) = (navi_home() / "pipeline" / "devices").iterdir()
    time.sleep(0.5)
    assert is_locked(lock)
    (tmp_path / "go").touch()
    until(lambda: not is_locked(lock))
