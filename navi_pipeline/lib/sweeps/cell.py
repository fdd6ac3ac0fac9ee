"""A cell of a sweep, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from navi_pipeline.lib.records.benchmark_log import Outcome as Status

__all__ = ["UNITS", "Cell", "Outcome", "Status", "read_train"]

UNITS = {
    "steps_per_second": "1/s",
    "steps_per_2_cpu_seconds": "1/s",
    "forward_ms": "ms",
    "update_ms": "ms",
    "wall_seconds": "s",
    "peak_memory_mb": "MB",
    "mrays_per_cpu_second": "Mrays/s",
    "error_p99": "voxel",
    "disagreement": "share",
}
"""Unit of a figure by the last part of its name; 1 for what is not listed."""


def read_train(document: dict[str, Any]) -> tuple[dict[str, float], list[list[float]]]:
    """Return figures and reward curve of what `navi bench train --json` answers."""
    figures = {
        "steps": float(document["total_steps"]),
        "reward_ema": float(document["reward_ema"]),
        "steps_per_second": float(document["steps_per_second"]),
        "steps_per_2_cpu_seconds": float(document["steps_per_2_cpu_seconds"]),
        "update_ms": 1e3 * _seconds(document["stages"], "update/") / max(int(document["updates"]), 1),
        "peak_memory_mb": float(document["peak_memory_mb"]),
    }
    if document["forward_ms"] is not None:
        figures["forward_ms"] = float(document["forward_ms"])
    return figures, [[float(steps), float(reward)] for steps, reward in document["curve"]]


def _seconds(stages: list[dict[str, Any]], phase: str) -> float:
    return sum(s["seconds"] for s in stages if s["name"].startswith(phase) and s["name"].count("/") == 1)


Reader = Callable[[dict[str, Any]], tuple[dict[str, float], list[list[float]]]]


@dataclass(frozen=True)
class Cell:
    """One combination to be measured by one `navi` command in a child process.

    Attributes:
        factors: What varies, by name; the seed among them where there are repeats.
        arguments: Arguments of `navi`; the command prints one JSON document.
        read: Takes figures by name, and (decisions, reward) pairs, from that document.
        settings: Contents of the file given as `--config`; None: no such file.
        scenes: Scene files given as `--scene`.
        scene_hashes: Content hashes of those, which name them in the key.
        asked: What was asked for instead of what the profile gives, by name.
    """

    factors: dict[str, Any]
    arguments: tuple[str, ...]
    read: Reader
    settings: dict[str, Any] | None = None
    scenes: tuple[str, ...] = ()
    scene_hashes: tuple[str, ...] = ()
    asked: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its place in the sweep, such as gru/seed1."""
        return "/".join(f"seed{value}" if key == "seed" else str(value) for key, value in self.factors.items())

    @property
    def level(self) -> str:
        """Its place without the seed: cells of one level are repeats."""
        return "/".join(str(value) for key, value in self.factors.items() if key != "seed")


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: Its name.
        level: Its place without the seed.
        factors: What varies.
        status: ok, or how it ended instead; each is a result.
        detail: The last line of what it said, where it is not ok.
        metrics: Figures by name; `wall_seconds` always.
        curve: (decisions, smoothed reward) pairs.
        run_id: Key of its rows in the warehouse.
        measured_at: When, ISO 8601 in UTC.
        reused: Whether it was measured earlier.
    """

    cell: str
    level: str
    factors: dict[str, Any]
    status: Status
    detail: str
    metrics: dict[str, float]
    curve: list[list[float]]
    run_id: str
    measured_at: str
    reused: bool = field(default=False, compare=False)
