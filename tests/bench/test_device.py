"""The table of a device: the program runs to its end on the twin and on an emulated device, and finds faults."""

from __future__ import annotations

import json

import pytest
import torch

from navi_core.bench import device as bench
from navi_core.bench.device import DeviceRow, main, run_device
from navi_core.errors import ConfigError
from tests.world.emulated_cuda import emulated_cuda

SMALL = {"drones": (3,), "azimuth_bins": 16, "elevation_bins": 4, "repeats": 1, "tune": True}


def failures(rows: list[DeviceRow]) -> list[DeviceRow]:
    return [row for row in rows if row.passed is False]


def test_the_whole_table_on_an_emulated_device(apartments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_STEPS", 4)
    with emulated_cuda():
        rows = list(run_device(apartments[:1], "cuda", **SMALL))
    assert failures(rows) == []
    said = "\n".join(row.what for row in rows)
    for part in (
        "bits equal to the twin's",
        "captured cast",
        "rays, 3 drones",
        "4 captured steps",
        "one graph",
        "build",
    ):
        assert part in said


def test_the_command_prints_the_table_of_the_twin(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--device cpu --drones 2 --scene rooms:1 --resolution 64 --size 16x4 --repeats 1 --json"
    assert main(arguments.split()) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row["passed"] is False] == []
    assert sum(row["passed"] is True for row in rows) >= 8


def test_a_part_that_fails_is_told_and_the_others_run(apartments, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setting: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(bench, "_correctness", broken)
    rows = list(run_device(apartments[:1], "cpu", **{**SMALL, "tune": False}))
    (failed,) = failures(rows)
    assert "illegal memory access" in str(failed.value)
    assert any(row.what.startswith("environment, 3 drones") for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is at hand")
def test_without_a_gpu_it_says_so_at_once(apartments) -> None:
    with pytest.raises(ConfigError, match="no GPU that torch"):
        next(run_device(apartments[:1], "cuda", **SMALL))
