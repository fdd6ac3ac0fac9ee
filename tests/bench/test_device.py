"""The table of a device: the program runs to its end on the twin and on an emulated device, and finds faults."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from navi_core.bench.engine import device as bench
from navi_core.bench.engine import device_training
from navi_core.bench.engine.device import DeviceRow, main, run_device
from navi_core.config import EnvConfig, PolicyConfig
from navi_core.errors import ConfigError
from navi_core.policy.shaper import EpisodicMemory
from navi_core.world import Field
from tests.world.emulated_cuda import emulated_cuda

SMALL = {"drones": (3,), "azimuth_bins": 16, "elevation_bins": 8, "repeats": 1, "tune": True}


def failures(rows: list[DeviceRow]) -> list[DeviceRow]:
    return [row for row in rows if row.passed is False]


def test_device_table_is_complete_on_an_emulated_device(apartments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_STEPS", 4)
    with emulated_cuda():
        # What is emulated are the kernels, streams and graphs of the world, not those of torch's own operations.
        rows = list(run_device(apartments[:1], "cuda", training=False, **SMALL))
    assert failures(rows) == []
    printed = "\n".join(row.what for row in rows)
    for part in (
        "bits equal to the twin's",
        "captured cast",
        "rays, 3 drones",
        "4 captured steps",
        "one graph",
        "build",
    ):
        assert part in printed


def test_the_command_prints_the_table_of_the_twin(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--device cpu --drones 2 --scene rooms:1 --resolution 64 --size 16x8 --repeats 1 --json"
    assert main(arguments.split()) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row["passed"] is False] == []
    assert sum(row["passed"] is True for row in rows) >= 8
    found = {row["what"]: row["value"] for row in rows}
    assert found["PPO, 2 drones, eager, fp32"] > 0 and "decisions of 16 drones at once" in found
    assert any(what.startswith("PPO, 2 drones, eager, fp32: update/") for what in found)
    assert all(value > 0 for what, value in found.items() if "share of a" in what)


@pytest.mark.slow
def test_a_run_of_ppo_keeps_to_its_device(apartments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eagerly: graphs of torch's own operations and bfloat16 are not emulated."""
    monkeypatch.setattr(device_training, "_limits", lambda device, kind: (1e12, 1e10))
    where, env = torch.device("cuda", 0), EnvConfig(azimuth_bins=16, elevation_bins=8)
    with emulated_cuda():
        rows = list(
            device_training.training_rows(lambda: Field(apartments[:1], device=where), env, 2, where, plain=True)
        )
    reported = {row.what: row.value for row in rows}
    assert reported["PPO, 2 drones, eager, fp32"] > 0 and "PPO, 2 drones, eager, fp32: update/backward" in reported
    assert sum("share of a" in what for what in reported) == 2


def test_decisions_keep_to_their_device() -> None:
    config = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=4)
    with emulated_cuda():
        rows = list(device_training.decision_rows(config, torch.device("cuda", 0), 1))
    assert [row.what.split()[2] for row in rows if row.unit == "1/s"] == ["1", "16", "256"]
    assert all(row.value > 0 for row in rows)


def test_failed_part_is_reported_and_the_others_run(apartments, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setting: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(bench, "_correctness", broken)
    rows = list(run_device(apartments[:1], "cpu", **{**SMALL, "tune": False}, training=False))
    (failed,) = failures(rows)
    assert "illegal memory access" in str(failed.value)
    assert any(row.what.startswith("environment, 3 drones") for row in rows)


def test_failed_ppo_run_is_retried_without_cudnn_attention(monkeypatch) -> None:
    tried: list[tuple[int, bool]] = []

    def training(field: object, env: EnvConfig, drones: int, device: torch.device) -> Iterator[DeviceRow]:
        tried.append((drones, torch.backends.cuda.cudnn_sdp_enabled()))
        if drones == 2 and tried[-1][1]:
            raise RuntimeError("No valid execution plans built.")
        yield DeviceRow(f"PPO, {drones} drones, graph, bf16", 1.0, "steps/s", drones > 2)

    monkeypatch.setattr(bench, "training_rows", training)
    setting = bench._Setting([], torch.device("cuda", 0), (2, 3), EnvConfig(), 1, 0)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        rows = list(bench._training(setting))
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert tried == [(2, True), (2, False), (3, False)]
    assert [row.what for row in failures(rows)] == ["PPO, 2 drones", "PPO, 2 drones, graph, bf16"]
    assert rows[-1].what == "PPO, 3 drones, graph, bf16"


def test_many_drones_have_as_many_remembered_steps_each() -> None:
    for drones in (1, 1024, 4096, 16384):
        config = device_training.training_config(EnvConfig(), drones, torch.device("cuda"))
        exclusion = config.shaper.memory_exclusion
        memory = EpisodicMemory(drones, config.shaper.memory_capacity, 1, exclusion=exclusion, device="meta")
        assert memory._units.shape[1] > exclusion


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is at hand")
def test_missing_gpu_is_refused_at_once(apartments) -> None:
    with pytest.raises(ConfigError, match="no GPU that torch"):
        next(run_device(apartments[:1], "cuda", **SMALL))
