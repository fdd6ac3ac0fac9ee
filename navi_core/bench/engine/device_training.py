"""Benchmark of PPO training on a GPU: throughput, distance to the device's limits, decision latency."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from navi_core.bench.learning.train import run_train
from navi_core.bench.report import Row
from navi_core.bench.timing import WALL, median, take_turns
from navi_core.config import EnvConfig, PolicyConfig, ShaperConfig, TrainConfig, parse_config
from navi_core.policy import build_policy, policy_macs
from navi_core.service.policies.served_model import EagerRunner
from navi_core.world import Field

STEP_TARGET = 20_000.0
"""Target throughput of PPO at 256x48 with rayvit and mamba2 [decisions/s]."""
_SESSIONS = (1, 16, 256)
_EPOCHS = 2
_UPDATES = 3
"""Number of measured updates."""
_MEMORY = 97
"""Capacity of the episodic memory per row [decisions], the default's share for 1,024 rows."""


@dataclass(frozen=True)
class DeviceRow:
    """Dataclass of one row of the device benchmark's table: name, value, unit, bound met or not.

    Attributes:
        what: Name of the measurement.
        value: Measured value, or text.
        unit: Unit of the value.
        passed: Whether the value meets its bound; None without a bound.
    """

    what: str
    value: float | str
    unit: str = ""
    passed: bool | None = None


def device_seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median time of a call [s], by CUDA events on a GPU, after three warm-up calls.

    Args:
        call: Function to time.
        device: Device of the computation.
        repeats: Calls that are timed.
    """
    for _ in range(3):
        call()
    if device.type != "cuda":
        return median(take_turns({"": call}, repeats, warmup=0)[""], WALL)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    seconds: float = statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairwise(marks))
    return seconds


def training_config(env: EnvConfig, drones: int, device: torch.device, *, plain: bool = False) -> TrainConfig:
    """Build the configuration of a PPO run with the standard network.

    Args:
        env: Environment whose observations the policy receives.
        drones: Batch size [rows].
        device: Device of the run; on CUDA with graphs, bfloat16 and event timing.
        plain: Eager mode and single precision on CUDA, too.
    """
    on_gpu = device.type == "cuda"
    fast = on_gpu and not plain
    rollout = 64 if on_gpu else 8
    bptt = min(32, rollout)
    sequences = drones * rollout // bptt
    settings: dict[str, Any] = {
        "actors": drones,
        "device": device.type,
        "execution": "graph" if fast else "eager",
        "precision": "bf16" if fast else "fp32",
        "storage": "compact",
        "profile": on_gpu,
        "env": env.model_dump(),
        "policy": {"encoder": "rayvit", "azimuth_bins": env.azimuth_bins, "elevation_bins": env.elevation_bins},
        "shaper": {"memory_capacity": max(ShaperConfig().memory_capacity, _MEMORY * drones)},
        # Sixteen gradient steps an epoch, or more of them where drones are few; and no end before the last epoch, or
        # the work of an update would depend on what is learned.
        "ppo": {
            "rollout": rollout,
            "bptt": bptt,
            "epochs": _EPOCHS,
            "minibatch": min(sequences, max(64, sequences // 16)),
            "target_kl": None,
        },
    }
    return parse_config(TrainConfig, settings)


def training_rows(
    field: Callable[[], Field], env: EnvConfig, drones: int, device: torch.device, *, plain: bool = False
) -> Iterator[DeviceRow]:
    """Benchmark PPO training: decisions per second, memory, stage times, and the gap to the device's limits.

    The warm-up update compiles kernels and records graphs; its time is a separate row.

    Args:
        field: Returns the scenes on the device.
        env: Environment whose observations the policy receives.
        drones: Batch size [rows].
        device: Device of the run.
        plain: Eager mode and single precision.
    """
    config = training_config(env, drones, device, plain=plain)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    try:
        done = run_train(config, field(), updates=_UPDATES if device.type == "cuda" else 1, warmup=1)
    finally:
        # Or another number of drones would be compiled as one of any size, and these graphs keep their memory.
        torch.compiler.reset()
    before = time.perf_counter() - began - done["wall_seconds"]
    name = f"PPO, {drones} drones, {config.execution}, {config.precision}"
    speed = done["steps_per_second"]
    needed = device.type == "cuda" and config.execution == "graph" and drones >= 1024
    yield DeviceRow(name, speed, "steps/s", speed >= STEP_TARGET if needed else None)
    yield DeviceRow(f"{name}: before the updates measured", before, "s")
    if device.type == "cuda":
        yield DeviceRow(f"{name}: memory at most", torch.cuda.max_memory_allocated(device) / 2**30, "GiB")
    for stage in done["stages"]:
        yield DeviceRow(f"{name}: {stage['name']}", f"{stage['milliseconds']:.4g} ms a call, {stage['share']:.1%}")
    yield from _gaps(name, config, done, device)


def _gaps(name: str, config: TrainConfig, done: Row, device: torch.device) -> Iterator[DeviceRow]:
    """Compare the training's FLOP/s and bytes/s with those of a matrix product and a copy on this device."""
    products, copied = _limits(device, torch.bfloat16 if config.precision == "bf16" else torch.float32)
    macs = policy_macs(build_policy(config.policy))["total"]
    # A decision is computed once, and in each epoch forward and, at twice the work, backward.
    operations = 2.0 * macs * (1 + 3 * _EPOCHS) * done["steps_per_second"]
    rays = config.policy.azimuth_bins * config.policy.elevation_bins
    # Of an observation 12 bytes a ray are written and read when it is cast, 3.125 stored, and read in each epoch.
    moved = rays * (2 * 12 + 3.125 * (1 + _EPOCHS)) * done["steps_per_second"]
    yield DeviceRow(f"{name}: share of a product's {products / 1e12:.4g} TFLOP/s", operations / products)
    yield DeviceRow(f"{name}: share of a copy's {copied / 1e9:.4g} GB/s, observations alone", moved / copied)


def _limits(device: torch.device, kind: torch.dtype) -> tuple[float, float]:
    """Measure the device's limits: FLOP/s of a large matrix product, bytes/s of a copy (read and written)."""
    edge = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(edge, edge, device=device, dtype=kind) for _ in range(2))
    source = torch.zeros(edge * edge, device=device)
    target = torch.empty_like(source)
    product, copy = (device_seconds(call, device, 20) for call in (lambda: a @ b, lambda: target.copy_(source)))
    return 2.0 * edge**3 / product, 2.0 * source.nbytes / copy


def decision_rows(config: PolicyConfig, device: torch.device, repeats: int) -> Iterator[DeviceRow]:
    """Benchmark batched decisions of one and of many drones, with transfers from and to host memory.

    Args:
        config: Network of the policy, with random weights.
        device: Device of the computation.
        repeats: Timed calls for each number of drones, in turns.
    """
    runner = EagerRunner(build_policy(config), "drawn", device)

    def deciding(drones: int) -> Callable[[], Any]:
        obs = torch.rand(drones, 3, config.azimuth_bins, config.elevation_bins)
        aux, begins = torch.zeros(drones, config.aux_inputs), torch.zeros(drones, dtype=torch.bool)
        return partial(runner.decide, obs, aux, runner.initial_state(drones), begins, None)

    samples = take_turns({str(n): deciding(n) for n in _SESSIONS}, repeats, warmup=3)
    one = 1.0 / median(samples["1"], WALL)
    for drones in _SESSIONS:
        rate = drones / median(samples[str(drones)], WALL)
        yield DeviceRow(f"decisions of {drones} drones at once", rate, "1/s")
        if drones > 1:
            yield DeviceRow(f"decisions of {drones} drones at once, against one", rate / one, "×")
