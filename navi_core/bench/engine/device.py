"""GPU benchmark of the engine: correctness against the CPU, throughput, memory, in one table.

`python -m navi_core.bench.engine.device` needs only torch, numpy, numba and pydantic. With `--device cpu` the program
runs on the kernels' CPU twin, to test the program itself; its speeds are then meaningless.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch

from navi_core.bench.engine.device_training import (
    DeviceRow,
    decision_rows,
    device_seconds,
    training_config,
    training_rows,
)
from navi_core.bench.engine.raycast import free_poses
from navi_core.bench.report import Drones, Option, Repeats, sizes
from navi_core.config import CompileConfig, EnvConfig
from navi_core.errors import ConfigError, NaviError
from navi_core.kernels.rays.brute import cast_brute
from navi_core.kernels.rays.cuda import TILES, CudaTracer, cuda_device
from navi_core.scenes import Scene, compile_mesh, generate_scene
from navi_core.world import CapturedStep, Field, NavigationEnv, RayHits, SphericalSensor

RAY_TARGET, STEP_TARGET = 2.0, 100_000.0  # G rays/s and drone-steps/s, at 256x48 with 1024 drones or more
_TARGET_DRONES = 1024
_STEPS = 30  # of the flights that are compared
_VARIANTS = (("-DNAVI_BLOCKS=1",), ("-DNAVI_BLOCKS=6",), (), ("-DNAVI_BLOCKS=10",), ("--fmad=true",))


@dataclass(frozen=True)
class _Setting:
    scenes: Sequence[Scene]
    device: torch.device
    drones: Sequence[int]
    config: EnvConfig
    repeats: int
    seed: int

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def seconds(self, call: Callable[[], Any]) -> float:
        return device_seconds(call, self.device, self.repeats)


def run_device(
    scenes: Sequence[Scene],
    device: str = "cuda",
    *,
    drones: Sequence[int] = (256, 1024, 4096),
    azimuth_bins: int = 256,
    elevation_bins: int = 48,
    repeats: int = 20,
    tune: bool = False,
    training: bool = True,
    seed: int = 0,
) -> Iterator[DeviceRow]:
    """Check and benchmark a device; yield rows as they are measured. A failing part does not stop the others.

    Args:
        scenes: Scenes with triangles, all in one field.
        device: "cuda", or "cpu" for the kernels' twin.
        drones: Rows of a batch.
        azimuth_bins: Azimuth bins Az of an observation.
        elevation_bins: Elevation bins El of an observation.
        repeats: Repeats of each timing; the median counts.
        tune: Also measure other builds and orders of rays.
        training: Also train by PPO, and decide.
        seed: Seed of poses and flights.

    Raises:
        ConfigError: torch sees no such device.
    """
    config = EnvConfig(azimuth_bins=azimuth_bins, elevation_bins=elevation_bins)
    where = torch.device(device) if device == "cpu" else cuda_device(torch.device(device))
    setting = _Setting(scenes, where, drones, config, repeats, seed)
    parts = [_machine, _correctness, _repeatability, _rays, _environment_right, _environment_fast]
    parts += [_training, _decisions, _plain_training] * training + [_tuning] * tune
    for part in parts:
        yield from _guarded(part.__name__.strip("_"), partial(part, setting))


def _guarded(name: str, part: Callable[[], Iterator[DeviceRow]]) -> Iterator[DeviceRow]:
    """Yield the rows of one part of the benchmark; an exception becomes a row with the error."""
    try:
        yield from part()
    except Exception as error:  # whatever it is: time on a device is short, and the other parts are wanted
        yield DeviceRow(name, f"{type(error).__name__}: {error}", passed=False)


def _field(setting: _Setting, scenes: Sequence[Scene] | None = None) -> Field:
    tracer = "cuda" if setting.device.type == "cpu" else None
    return Field(scenes or setting.scenes, device=setting.device, tracer=tracer)


def _tracer(field: Field) -> CudaTracer:
    assert isinstance(field._tracer, CudaTracer)
    return field._tracer


def _machine(setting: _Setting) -> Iterator[DeviceRow]:
    yield DeviceRow(
        "versions", f"Python {sys.version.split()[0]}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    )
    if setting.on_gpu:
        torch.cuda.init()
        found = torch.cuda.get_device_properties(setting.device)
        size = f"{found.total_memory / 2**30:.0f} GiB, {found.multi_processor_count} multiprocessors"
        yield DeviceRow("device", f"{found.name}, {size}, sm_{found.major}{found.minor}")
    started = time.perf_counter()
    field = _field(setting)
    yield DeviceRow("field built, kernels compiled or loaded", time.perf_counter() - started, "s")
    yield DeviceRow(f"{field.num_scenes} scenes on the device", _tracer(field).nbytes / 1e6, "MB")
    for name, kernel in _tracer(field).resources.items():
        memory = f"{kernel.registers} registers, {kernel.local_bytes} B local, {kernel.shared_bytes} B shared"
        yield DeviceRow(f"kernel {name}", f"{memory}, sm_{kernel.architecture}")


def _correctness(setting: _Setting) -> Iterator[DeviceRow]:
    """Compare ray casts with brute force over all triangles, the CPU tracer, and bitwise the kernels' CPU twin."""
    rng = np.random.default_rng(setting.seed)
    for scene in setting.scenes:
        on_cpu, twin, field = Field([scene]), Field([scene], tracer="cuda"), _field(setting, [scene])
        sensor = SphericalSensor(field, setting.config.azimuth_bins, setting.config.elevation_bins, 100.0)
        directions = sensor.directions.cpu()
        origins = free_poses(on_cpu, 16, setting.seed)
        rows = torch.zeros(len(origins), dtype=torch.int32)
        start, ray, row = (x.to(setting.device) for x in (origins, directions, rows))
        there = field.cast_rays(start, ray, row, 100.0, elevations=setting.config.elevation_bins)
        hits = RayHits(there.depth.cpu(), there.semantic.cpu(), there.valid.cpu())
        wanted, same = (f.cast_rays(origins, directions, rows, 100.0) for f in (on_cpu, twin))
        both = hits.valid & wanted.valid
        away = ((hits.depth - wanted.depth).abs() / scene.voxel_size)[both]
        differ = float((hits.valid != wanted.valid).float().mean())
        yield DeviceRow(f"{scene.name}: met here or on the CPU, not both", differ, "share", differ <= 2e-5)
        yield DeviceRow(f"{scene.name}: p99 depth apart from the CPU", _p99(away), "voxel", _p99(away) <= 0.01)
        agree = float((hits.semantic == wanted.semantic)[both].float().mean())
        yield DeviceRow(f"{scene.name}: semantic agreement", agree, "share", agree >= 0.995)
        equal = float(((hits.depth == same.depth) & (hits.semantic == same.semantic)).float().mean())
        yield DeviceRow(f"{scene.name}: bits equal to the twin's", equal, "share", equal == 1.0)
        chosen = rng.choice(hits.depth.numel(), min(2000, hits.depth.numel()), replace=False)
        which, beam = np.divmod(chosen, len(directions))
        assert scene.triangles is not None
        truth = cast_brute(
            scene.triangles.astype(np.float64), origins.double().numpy()[which], directions.double().numpy()[beam]
        )
        found, hit = hits.depth.numpy()[which, beam], np.minimum(truth, 100.0) < 100.0
        met = hit & hits.valid.numpy()[which, beam]
        error = _p99(torch.from_numpy(np.abs(found - truth)[met] / scene.voxel_size))
        yield DeviceRow(f"{scene.name}: p99 depth error against every triangle", error, "voxel", error <= 0.01)
        points = torch.from_numpy(rng.uniform(scene.mesh_bounds[0], scene.mesh_bounds[1], (4000, 3))).float()
        rows = torch.zeros(len(points), dtype=torch.int32)
        asked = points.to(setting.device), rows.to(setting.device)
        apart = float((field.distance(*asked).cpu() - on_cpu.distance(points, rows)).abs().max())
        yield DeviceRow(f"{scene.name}: clearance apart from the CPU, most", apart, "m", apart <= 1e-5)
        equal = float((field.within(*asked, 0.3).cpu() == on_cpu.within(points, rows, 0.3)).float().mean())
        yield DeviceRow(f"{scene.name}: within 0.3 m as on the CPU", equal, "share", equal == 1.0)


def _p99(values: torch.Tensor) -> float:
    return float(np.quantile(values.numpy(), 0.99)) if len(values) else math.nan


def _batch(setting: _Setting, field: Field, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return positions (B, 3), yaws (B,) and scene indices (B,) of `count` drones in free space."""
    each = -(-count // len(setting.scenes))
    poses = [free_poses(Field([scene]), min(each, 64), setting.seed) for scene in setting.scenes]
    position = torch.cat([p[torch.arange(each) % len(p)] for p in poses])[:count]
    scene = torch.arange(len(poses), dtype=torch.int32).repeat_interleave(each)[:count]
    yaw = torch.rand(count, generator=torch.Generator().manual_seed(setting.seed)) * 2 * math.pi
    return position.to(field.device), yaw.to(field.device), scene.to(field.device)


def _repeatability(setting: _Setting) -> Iterator[DeviceRow]:
    field = _field(setting)
    sensor = SphericalSensor(field, setting.config.azimuth_bins, setting.config.elevation_bins, 100.0)
    batch = _batch(setting, field, min(setting.drones))
    first, second = (sensor.cast(*batch) for _ in range(2))
    same = torch.equal(first.depth, second.depth) and torch.equal(first.semantic, second.semantic)
    yield DeviceRow("two casts give the same bits", str(same), passed=same)
    if setting.device.type != "cuda":
        return
    out = RayHits(*(torch.zeros_like(x) for x in (first.depth, first.semantic, first.valid)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sensor.cast(*batch, out=out)
    graph.replay()
    same = torch.equal(out.depth, first.depth) and torch.equal(out.valid, first.valid)
    yield DeviceRow("a captured cast gives the same bits", str(same), passed=same)


def _rays(setting: _Setting) -> Iterator[DeviceRow]:
    field = _field(setting)
    sensor = SphericalSensor(field, setting.config.azimuth_bins, setting.config.elevation_bins, 100.0)
    for count in setting.drones:
        position, yaw, scene = _batch(setting, field, count)
        out = RayHits.empty(count, len(sensor.directions), field.device)
        number = count * len(sensor.directions)
        cast = partial(field.cast_rays, position, sensor.directions, scene, 100.0, out, sensor.elevation_bins)
        speed = number / setting.seconds(cast) / 1e9
        needed = setting.on_gpu and count >= _TARGET_DRONES
        yield DeviceRow(f"rays, {count} drones", speed, "G/s", speed >= RAY_TARGET if needed else None)
        speed = number / setting.seconds(partial(sensor.cast, position, yaw, scene, out)) / 1e9
        yield DeviceRow(f"rays with turned directions, {count} drones", speed, "G/s")
        points = setting.seconds(partial(field.distance, position, scene))
        yield DeviceRow(f"clearance, {count} drones", points * 1e6, "µs")


def _environment_right(setting: _Setting) -> Iterator[DeviceRow]:
    """Compare environment trajectories on the device with the CPU's, and plain steps with captured CUDA graphs."""
    rows, config = min(8, *setting.drones), setting.config
    plain = NavigationEnv(_field(setting), rows, config, setting.seed)
    cpu = NavigationEnv(Field(setting.scenes), rows, config, setting.seed)
    captured = CapturedStep(NavigationEnv(_field(setting), rows, config, setting.seed)) if setting.on_gpu else None
    generator = torch.Generator().manual_seed(setting.seed)
    apart, same = 0.0, True
    for _ in range(_STEPS):
        action = torch.rand(rows, 4, generator=generator) * 2 - 1
        batch, wanted = plain.step(action.to(setting.device)), cpu.step(action)
        apart = max(apart, float((batch.info["position"].cpu() - wanted.info["position"]).abs().max()))
        if captured is not None:
            again = captured(action.to(setting.device))
            same &= torch.equal(again.obs, batch.obs) and torch.equal(again.reward, batch.reward)
    yield DeviceRow(f"{_STEPS} steps: positions apart from the CPU's, most", apart, "m", apart <= 0.01)
    if captured is not None:
        yield DeviceRow(f"{_STEPS} captured steps give the bits of plain ones", str(same), passed=same)


def _environment_fast(setting: _Setting) -> Iterator[DeviceRow]:
    field = _field(setting)
    for count in setting.drones:
        env = NavigationEnv(field, count, setting.config, setting.seed)
        actions = (torch.rand(count, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1).to(setting.device)
        speed = count / setting.seconds(partial(env.step, actions))
        yield DeviceRow(f"environment, {count} drones", speed, "steps/s")
        if setting.on_gpu:
            speed = count / setting.seconds(partial(CapturedStep(env), actions))
            passed = speed >= STEP_TARGET if count >= _TARGET_DRONES else None
            yield DeviceRow(f"environment as one graph, {count} drones", speed, "steps/s", passed)
        if setting.on_gpu:
            yield DeviceRow(f"memory at most, {count} drones", torch.cuda.max_memory_allocated() / 2**30, "GiB")


def _training(setting: _Setting) -> Iterator[DeviceRow]:
    """Benchmark PPO in its fastest mode; if cuDNN's attention fails, repeat without it."""
    for count in setting.drones:
        name = f"PPO, {count} drones"
        run = partial(training_rows, partial(_field, setting), setting.config, count, setting.device)
        failed = False
        for row in _guarded(name, run):
            failed = row.what == name
            yield row
        if failed and setting.on_gpu and torch.backends.cuda.cudnn_sdp_enabled():
            torch.backends.cuda.enable_cudnn_sdp(False)
            yield from _guarded(f"{name}, without cuDNN's attention", run)


def _plain_training(setting: _Setting) -> Iterator[DeviceRow]:
    """Benchmark PPO in eager mode and single precision, to compare with the CPU's table."""
    if setting.on_gpu:
        count = min(setting.drones)
        yield from training_rows(partial(_field, setting), setting.config, count, setting.device, plain=True)


def _decisions(setting: _Setting) -> Iterator[DeviceRow]:
    yield from decision_rows(training_config(setting.config, 1, setting.device).policy, setting.device, setting.repeats)


def _tuning(setting: _Setting) -> Iterator[DeviceRow]:
    """Benchmark other kernel builds and ray orders at the largest batch."""
    field = _field(setting)
    sensor = SphericalSensor(field, setting.config.azimuth_bins, setting.config.elevation_bins, 100.0)
    position, _, scene = _batch(setting, field, max(setting.drones))
    rays = sensor.directions[None]
    out = RayHits.empty(len(position), len(sensor.directions), field.device)
    written = out.depth, out.semantic, out.valid
    orders: list[tuple[tuple[int, int], ...]] = [(), *((tile,) for tile in TILES)]
    for flags in _VARIANTS:
        tracer = CudaTracer(field.packed, field.device, flags)
        for tiles in orders:
            tracer.tiles = tiles
            cast = partial(tracer.cast, position, rays, scene, 100.0, setting.config.elevation_bins, *written)
            speed = out.depth.numel() / setting.seconds(cast) / 1e9
            shape = "as they come" if not tiles else "×".join(map(str, tiles[0]))
            yield DeviceRow(f"build {' '.join(flags) or 'as it is'}, tiles {shape}", speed, "G/s")


def _scene(name: str, resolution: int) -> Scene:
    family, _, seed = name.partition(":")
    if not seed.isdecimal():
        raise ConfigError(f"--scene {name!r} is not of the form family:seed; write it as apartment:1")
    return compile_mesh(generate_scene(family, int(seed)), CompileConfig(resolution=resolution))


_FLAGS: dict[str, dict[str, Any]] = {
    "--device": {"default": "cuda", "help": "cuda, or cpu for the twin (default: %(default)s)"},
    "--drones": {"type": int, "nargs": "+", "default": [256, 1024, 4096]},
    "--scene": {
        "nargs": "+",
        "default": ["apartment:1", "maze:1", "atrium:1", "rooms:1"],
        "metavar": "FAMILY:SEED",
    },
    "--resolution": {"type": int, "default": 512},
    "--size": {"default": "256x48", "metavar": "AZxEL"},
    "--repeats": {"type": int, "default": 20},
    "--tune": {"action": "store_true", "help": "also measure other builds and orders of rays"},
    "--no-training": {"action": "store_true", "help": "leave out PPO and decisions"},
    "--json": {"action": "store_true", "help": "print one JSON object a line"},
}
"""Command-line flags of `python -m navi_core.bench.engine.device`, for machines without typer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: run the benchmark and print its table; exit code 1 if a bound is missed or a part failed."""
    parser = argparse.ArgumentParser(prog="python -m navi_core.bench.engine.device", description=__doc__)
    for flag, settings in _FLAGS.items():
        parser.add_argument(flag, **settings)
    chosen = parser.parse_args(arguments)
    ((azimuth, elevation),) = sizes([chosen.size])
    compiled = [_scene(name, chosen.resolution) for name in chosen.scene]
    failed = 0
    for row in run_device(
        compiled, chosen.device, drones=chosen.drones, azimuth_bins=azimuth, elevation_bins=elevation,
        repeats=chosen.repeats, tune=chosen.tune, training=not chosen.no_training,
    ):  # fmt: skip
        failed += row.passed is False
        value = row.value if isinstance(row.value, str) else f"{row.value:,.6g}"
        mark = {None: "  ", True: "ok", False: "NO"}[row.passed]
        line = json.dumps(asdict(row)) if chosen.json else f"{mark}  {row.what:<62}  {value} {row.unit}".rstrip()
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return int(failed > 0)


def device(
    device: Annotated[str, Option(help="cuda, or cpu for the kernels' twin.")] = "cuda",
    scene: Annotated[
        list[str] | None, Option(flag="--scene", help="family:seed; may be repeated.", metavar="S")
    ] = None,
    resolution: Annotated[int, Option(min=64, help="Compile resolution.")] = 512,
    size: Annotated[str, Option(help="Azimuth and elevation bins.", metavar="AZxEL")] = "256x48",
    drones: Drones = None,
    repeats: Repeats = 20,
    tune: Annotated[bool, Option(help="Also measure other builds and orders of rays.")] = False,
    *,
    as_json: bool,
) -> int:
    """Command `navi bench device`: run the device benchmark with the options as flags of `main`."""
    arguments = ["--device", device, "--resolution", str(resolution), "--size", size, "--repeats", str(repeats)]
    arguments += ["--scene", *scene] if scene else []
    arguments += ["--drones", *map(str, drones)] if drones else []
    return main([*arguments, *["--tune"] * tune, *["--json"] * as_json])


if __name__ == "__main__":
    try:
        code = main()
    except NaviError as error:
        sys.stderr.write(f"{error}\n")
        code = error.exit_code
    sys.stdout.flush()
    # At once: torch's own end waits up to five minutes for a compiler's process that hangs; they all end with this one.
    os._exit(code)
