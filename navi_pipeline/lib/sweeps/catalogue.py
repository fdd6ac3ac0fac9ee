"""Catalogue of parameter sweeps: factors, their values, and the size of a cell in each profile."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from navi_core.errors import ConfigError
from navi_core.presets import merge
from navi_pipeline.lib.ablations.catalogue import sensor_settings
from navi_pipeline.lib.sweeps.cells import Cell, read_train
from navi_pipeline.settings import SweepConfig

RESOLUTIONS = ((256, 48), (384, 72), (512, 96), (768, 144))
CORES = ("mamba2", "gru", "mambapy")
ENCODERS = ("rayvit", "spherical_cnn", "ring_cnn")
CADENCES = (256, 512)
ACTORS = tuple(range(4, 33, 4))
RAY_SCENES = ("apartment", "maze", "atrium")
_QUICK_STEPS, _QUICK_SECONDS = 2000, 20.0
_THREADS = 1

Level = tuple[dict[str, Any], dict[str, Any]]
"""Level of a factor: its name and value, and the settings that produce it."""
Scenery = Sequence[tuple[Path, str]]
"""Scene files to train in, each with its content hash."""


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
class Sweep:
    """Parameter sweep of the catalogue: name, question, metrics to show, and its cells.

    Attributes:
        name: Name of the sweep and its asset.
        question: Question that the sweep answers.
        shown: Figures in tables; the first one is drawn.
        cells: Factory of the cells for a configuration and training scenes.
    """

    name: str
    question: str
    shown: tuple[str, ...]
    cells: Callable[[SweepConfig, Scenery], list[Cell]]


def find_sweep(name: str) -> Sweep:
    """Look up a sweep of the catalogue by name.

    Raises:
        ConfigError: There is no sweep of that name.
    """
    if name not in SWEEPS:
        raise ConfigError(f"no sweep {name!r}; allowed: {', '.join(SWEEPS)}")
    return SWEEPS[name]


def _training(levels: Sequence[Level], quick: Size, full: Size) -> Callable[[SweepConfig, Scenery], list[Cell]]:
    def cells(config: SweepConfig, scenes: Scenery) -> list[Cell]:
        size = quick if config.profile == "quick" else full
        profile_seconds = _QUICK_SECONDS if config.profile == "quick" else None
        seconds = config.seconds or profile_seconds
        limits = [] if seconds is None else ["--seconds", f"{seconds:g}"]
        limits += [] if config.memory_limit is None else ["--memory-limit", f"{config.memory_limit:g}"]
        asked = _asked(
            preset=(config.preset, size.preset),
            seconds=(config.seconds, profile_seconds),
            steps=(config.steps, size.steps),
            threads=(config.threads, _THREADS),
        )
        made = []
        for seed in range(config.seeds or size.seeds):
            base = merge({"seed": seed, "threads": config.threads}, size.settings)
            for factors, settings in levels:
                actors = settings.get("actors", size.actors)
                rollout = settings.get("ppo", {}).get("rollout", size.rollout)
                updates = (config.steps or size.steps) / (actors * rollout)
                # The first update warms up and is not timed.
                timed = max(1, (math.ceil(updates) if config.profile == "full" else math.floor(updates)) - 1)
                arguments = ("bench", "train", "--json", "--preset", config.preset or size.preset, "--actors",
                             str(actors), "--rollout", str(rollout), "--updates", str(timed), *limits)  # fmt: skip
                made.append(
                    Cell(
                        factors=factors | {"seed": seed},
                        arguments=arguments,
                        read=read_train,
                        settings=merge(base, {key: value for key, value in settings.items() if key != "actors"}),
                        scenes=tuple(str(path) for path, _ in scenes),
                        scene_hashes=tuple(digest for _, digest in scenes),
                        asked=asked,
                    )
                )
        return made

    return cells


def _asked(**given: tuple[Any, Any]) -> dict[str, Any]:
    """Return the options whose value differs from the profile's, given pairs (requested, profile's)."""
    return {name: wanted for name, (wanted, own) in given.items() if wanted not in (None, own)}


def _raycast(config: SweepConfig, _scenes: Scenery) -> list[Cell]:
    quick = config.profile == "quick"
    arguments = ["bench", "raycast", "--json", "--resolution", "256" if quick else "512"]
    arguments += ["--repeats", "3" if quick else "7", "--threads", str(config.threads or 1)]
    if quick:
        arguments += ["--tracer", "native", "--tracer", "numba"]
    asked = _asked(threads=(config.threads or 1, _THREADS))
    return [
        Cell({"scene": family, "seed": seed}, (*arguments, "--scene", f"{family}:{seed}"), _read_raycast, asked=asked)
        for seed in range(config.seeds or (1 if quick else 3))
        for family in RAY_SCENES
    ]


def _read_raycast(document: dict[str, Any]) -> tuple[dict[str, float], list[list[float]]]:
    figures = {}
    for row in document["rows"]:
        for name in ("mrays_per_cpu_second", "error_p99", "disagreement"):
            figures[f"{row['tracer']}/{name}"] = float(row[name])
    return figures, []


_LEARNT = ("reward_ema", "steps_per_second", "forward_ms", "wall_seconds", "peak_memory_mb", "steps")
_SPEED = ("steps_per_second", "forward_ms", "update_ms", "peak_memory_mb", "wall_seconds", "steps")

SWEEPS: dict[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "resolution_sweep",
            "What does a finer panorama cost?",
            _SPEED,
            _training(
                [
                    ({"resolution": f"{width}x{height}"}, sensor_settings(width, height))
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
                [({"core": core}, {"policy": {"core": core}}) for core in CORES],
                Size("quick", 4, 64, _QUICK_STEPS, 3, {"ppo": {"minibatch": 4}}),
                Size("standard", 16, 64, 25_000, 3, {"ppo": {"minibatch": 8}}),
            ),
        ),
        Sweep(
            "encoder_sweep",
            "Which eye learns best, and at what cost?",
            _LEARNT,
            _training(
                [({"encoder": encoder}, {"policy": {"encoder": encoder}}) for encoder in ENCODERS],
                Size("quick", 4, 64, _QUICK_STEPS, 1, {"ppo": {"minibatch": 4}}),
                Size("standard", 16, 64, 8_192, 3, {"ppo": {"minibatch": 8}}),
            ),
        ),
        Sweep(
            "cadence_sweep",
            "How many decisions per row between updates?",
            _LEARNT,
            _training(
                [({"rollout": rollout}, {"ppo": {"rollout": rollout}}) for rollout in CADENCES],
                Size("quick", 1, 256, _QUICK_STEPS, 1, {"ppo": {"minibatch": 4}}),
                Size("quick", 16, 256, 65_536, 3),
            ),
        ),
        Sweep(
            "actor_scaling",
            "How does throughput grow with the rows that fly at once?",
            _SPEED,
            _training(
                [({"actors": actors}, {"actors": actors}) for actors in ACTORS],
                Size("quick", 4, 16, _QUICK_STEPS, 1, {"ppo": {"bptt": 16, "minibatch": 8}}),
                Size("quick", 4, 64, 16_384, 3, {"ppo": {"minibatch": 8}}),
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
