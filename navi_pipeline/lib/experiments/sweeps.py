"""Catalogue of parameter sweeps: factors, their values, and the size of a cell in each profile."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from navi_core.errors import ConfigError, did_you_mean
from navi_core.presets import merge
from navi_core.record import hardware_profile
from navi_pipeline.lib.experiments.cells import Cell, Curve, Measurement
from navi_pipeline.lib.experiments.variants import Variant, sensor_settings
from navi_pipeline.lib.records import content_key, pipeline_folder, write_document
from navi_pipeline.settings import SweepConfig

RESOLUTIONS = ((256, 48), (384, 72), (512, 96), (768, 144))
CORES = ("mamba2", "gru", "mambapy")
ENCODERS = ("rayvit", "spherical_cnn", "ring_cnn")
CADENCES = (256, 512)
ACTORS = tuple(range(4, 33, 4))
RAY_SCENES = ("apartment", "maze", "atrium")
_QUICK_STEPS, _QUICK_SECONDS = 2000, 10.0
_THREADS = 1
_VERSION = 1

Scenery = Sequence[tuple[Path, str]]
"""Scene files to train in, each with its content hash."""
Figures = tuple[dict[str, float], Curve]


@dataclass(frozen=True)
class Size:
    """Size of a sweep's cells in one profile: preset, environments, rollout length, steps, seeds."""

    preset: str
    actors: int
    rollout: int
    steps: int
    seeds: int
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchCommand:
    """Measurement of a cell by one `navi bench` command, which prints one JSON document.

    Attributes:
        arguments: Arguments of `navi`.
        read: Parser of the document: returns figures by name, and (decisions, reward) pairs.
        settings: Contents of the file given as `--config`; None: no such file.
        scenes: Scene files given as `--scene`, with their content hashes.
    """

    arguments: tuple[str, ...]
    read: Callable[[dict[str, Any]], Figures]
    settings: dict[str, Any] | None = None
    scenes: Scenery = ()

    def key(self, sweep: str, factors: dict[str, Any]) -> str:
        """Return the cache key of a measurement: cell, scene contents, machine, library versions."""
        profile, hashes = hardware_profile(), [digest for _, digest in self.scenes]
        machine = [profile["hardware"], profile["versions"]]
        return content_key(sweep, factors, self.arguments, self.settings, hashes, machine, _VERSION)

    def __call__(self, measurement: Measurement) -> None:
        """Run the command and fill figures and curve in."""
        arguments = [*self.arguments, *(word for path, _ in self.scenes for word in ("--scene", str(path)))]
        if self.settings is not None:
            file = pipeline_folder() / "configs" / f"bench-{content_key(self.settings)}.json"
            write_document(file, self.settings)
            arguments += ["--config", str(file)]
        figures, measurement.outcome.curve = measurement.run(*arguments, read=self.read, grace_seconds=2.0)
        measurement.outcome.metrics |= figures


Bench = tuple[dict[str, Any], BenchCommand]
"""Factors of a cell, and its measurement."""


@dataclass(frozen=True)
class Sweep:
    """Parameter sweep of the catalogue: name, question, metrics to show, and its cells.

    Attributes:
        name: Name of the sweep and its asset.
        question: Question that the sweep answers.
        shown: Figures in tables; the first two are drawn.
        cells: Function of configuration and scenes; returns the cells, and the options that differ from the profile's.
    """

    name: str
    question: str
    shown: tuple[str, ...]
    cells: Callable[[SweepConfig, Scenery], tuple[list[Bench], dict[str, Any]]]


def find_sweep(name: str) -> Sweep:
    """Look up a sweep of the catalogue by name.

    Raises:
        ConfigError: There is no sweep of that name.
    """
    if name not in SWEEPS:
        raise ConfigError(f"no sweep {name!r}; {did_you_mean(name, SWEEPS)}allowed: {', '.join(SWEEPS)}")
    return SWEEPS[name]


def sweep_cells(name: str, config: SweepConfig, scenes: Scenery) -> list[Cell]:
    """Return the cells of a sweep.

    Raises:
        ConfigError: There is no sweep of that name.
    """
    benches, asked = find_sweep(name).cells(config, scenes)
    keys = [command.key(name, factors) for factors, command in benches]
    # The group of cells for averages: profile and changed options, such as `full, steps 5000`.
    size = ", ".join([config.profile, *(f"{option} {value}" for option, value in sorted(asked.items()))])
    return [
        Cell(
            factors=factors,
            file=pipeline_folder() / "sweeps" / name / f"{key}.json",
            measure=command,
            benchmark=name,
            run_id=f"{name}-{config.profile}-{content_key(keys)}",
            profile=size,
            parameters={"profile": config.profile, **factors},
            config_hash=content_key(command.arguments, command.settings),
        )
        for (factors, command), key in zip(benches, keys, strict=True)
    ]


def _training(
    factor: str, variants: Sequence[Variant], quick: Size, full: Size
) -> Callable[[SweepConfig, Scenery], tuple[list[Bench], dict[str, Any]]]:
    def cells(config: SweepConfig, scenes: Scenery) -> tuple[list[Bench], dict[str, Any]]:
        size = quick if config.profile == "quick" else full
        profile_seconds = _QUICK_SECONDS if config.profile == "quick" else None
        seconds = config.seconds or profile_seconds
        limits = [] if seconds is None else ["--seconds", f"{seconds:g}"]
        limits += [] if config.memory_limit is None else ["--memory-limit", f"{config.memory_limit:g}"]
        made = []
        for seed in range(config.seeds or size.seeds):
            base = merge({"seed": seed, "threads": config.threads}, size.settings)
            for variant in variants:
                actors = variant.settings.get("actors", size.actors)
                rollout = variant.settings.get("ppo", {}).get("rollout", size.rollout)
                updates = (config.steps or size.steps) / (actors * rollout)
                # The first update warms up and is not timed.
                timed = max(1, (math.ceil(updates) if config.profile == "full" else math.floor(updates)) - 1)
                arguments = ("bench", "train", "--json", "--preset", config.preset or size.preset, "--actors",
                             str(actors), "--rollout", str(rollout), "--updates", str(timed), *limits)  # fmt: skip
                settings = merge(base, {key: value for key, value in variant.settings.items() if key != "actors"})
                level = {"rollout": rollout, "actors": actors}.get(factor, variant.name)
                made.append(({factor: level, "seed": seed}, BenchCommand(arguments, read_train, settings, scenes)))
        return made, _asked(
            preset=(config.preset, size.preset),
            seconds=(config.seconds, profile_seconds),
            steps=(config.steps, size.steps),
            threads=(config.threads, _THREADS),
        )

    return cells


def _asked(**given: tuple[Any, Any]) -> dict[str, Any]:
    """Return the options whose value differs from the profile's, given pairs (requested, profile's)."""
    return {name: wanted for name, (wanted, own) in given.items() if wanted not in (None, own)}


def _raycast(config: SweepConfig, _scenes: Scenery) -> tuple[list[Bench], dict[str, Any]]:
    quick = config.profile == "quick"
    arguments = ["bench", "raycast", "--json", "--resolution", "256" if quick else "512"]
    arguments += ["--repeats", "3" if quick else "7", "--threads", str(config.threads or 1)]
    if quick:
        arguments += ["--tracer", "native", "--tracer", "numba"]
    return [
        ({"scene": family, "seed": seed}, BenchCommand((*arguments, "--scene", f"{family}:{seed}"), _read_raycast))
        for seed in range(config.seeds or (1 if quick else 3))
        for family in RAY_SCENES
    ], _asked(threads=(config.threads or 1, _THREADS))


def read_train(document: dict[str, Any]) -> Figures:
    """Extract metrics and reward curve from the JSON output of `navi bench train --json`."""
    updating = [
        float(stage["seconds"])
        for stage in document["stages"]
        if stage["name"].startswith("update/") and stage["name"].count("/") == 1
    ]
    figures = {
        "steps": float(document["total_steps"]),
        "reward_ema": float(document["reward_ema"]),
        "steps_per_second": float(document["steps_per_second"]),
        "steps_per_2_cpu_seconds": float(document["steps_per_2_cpu_seconds"]),
        "update_ms": 1e3 * sum(updating) / max(int(document["updates"]), 1),
        "peak_memory_mb": float(document["peak_memory_mb"]),
    }
    if document["forward_ms"] is not None:
        figures["forward_ms"] = float(document["forward_ms"])
    return figures, [[float(steps), float(reward)] for steps, reward in document["curve"]]


def _read_raycast(document: dict[str, Any]) -> Figures:
    figures = {}
    for row in document["rows"]:
        for name in ("mrays_per_cpu_second", "error_p99", "disagreement"):
            figures[f"{row['tracer']}/{name}"] = float(row[name])
    return figures, []


_CPU_RATE = "steps_per_2_cpu_seconds"
_LEARNT = ("reward_ema", "steps_per_second", "forward_ms", "peak_memory_mb", "cpu_minutes", "steps", _CPU_RATE)
_SPEED = ("steps_per_second", "forward_ms", "update_ms", "peak_memory_mb", "cpu_minutes", "steps", _CPU_RATE)

SWEEPS: dict[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "resolution_sweep",
            "What does a finer panorama cost?",
            _SPEED,
            _training(
                "resolution",
                [
                    Variant(f"{width}x{height}", settings=sensor_settings(width, height))
                    for width, height in RESOLUTIONS
                ],
                Size("standard", 4, 8, _QUICK_STEPS, 1, {"ppo": {"bptt": 8}}),
                Size("standard", 4, 256, 2048, 3),
            ),
        ),
        Sweep(
            "temporal_core_sweep",
            "Which memory learns best, and at what cost?",
            _LEARNT,
            _training(
                "core",
                [Variant(core, settings={"policy": {"core": core}}) for core in CORES],
                Size("quick", 4, 64, _QUICK_STEPS, 3, {"ppo": {"minibatch": 4}}),
                Size("standard", 16, 64, 25_000, 3, {"ppo": {"minibatch": 8}}),
            ),
        ),
        Sweep(
            "encoder_sweep",
            "Which eye learns best, and at what cost?",
            _LEARNT,
            _training(
                "encoder",
                [Variant(encoder, settings={"policy": {"encoder": encoder}}) for encoder in ENCODERS],
                Size("quick", 4, 64, _QUICK_STEPS, 1, {"ppo": {"minibatch": 4}}),
                Size("standard", 16, 64, 4_096, 3, {"ppo": {"minibatch": 8}}),
            ),
        ),
        Sweep(
            "cadence_sweep",
            "How many decisions per row between updates?",
            _LEARNT,
            _training(
                "rollout",
                [Variant(str(rollout), settings={"ppo": {"rollout": rollout}}) for rollout in CADENCES],
                Size("quick", 1, 256, _QUICK_STEPS, 1, {"ppo": {"minibatch": 4}}),
                Size("standard", 4, 256, 8_192, 3),
            ),
        ),
        Sweep(
            "actor_scaling",
            "How does throughput grow with the rows that fly at once?",
            _SPEED,
            _training(
                "actors",
                [Variant(str(actors), settings={"actors": actors}) for actors in ACTORS],
                Size("quick", 4, 16, _QUICK_STEPS, 1, {"ppo": {"bptt": 16, "minibatch": 8}}),
                Size("standard", 4, 64, 2_048, 3, {"ppo": {"minibatch": 8}}),
            ),
        ),
        Sweep(
            "raycast_benchmark",
            "How many rays a second, and how exact?",
            ("native/mrays_per_cpu_second", "numba/mrays_per_cpu_second", "native/error_p99", "native/disagreement"),
            _raycast,
        ),
    )
}
"""Parameter sweeps of the catalogue by name."""
