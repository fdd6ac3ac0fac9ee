"""Evaluation result: one row per episode, a summary, and the flown paths; saved as JSON."""

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from navi_core.config import EvalConfig, config_hash, parse_config
from navi_core.errors import EvaluationError, as_argument
from navi_core.evaluate.statistics import (
    FEW_SCENES,
    Interval,
    interquartile_mean,
    mean_of_scenes,
    percentage_interval,
)
from navi_core.record import write_durably

_ROOMS = ("kernels", "mapping", "world", "scenes", "policy", "pilots", "evaluate/flight", "evaluate/metrics")
_FILES = ("evaluate/protocol.py",)
"""Code that determines an episode; settings are part of the protocol and the checkpoint."""
_SOURCES = frozenset({".py", ".h", ".cpp", ".cu"})


@cache
def flight_code() -> str:
    """Hash the sources that determine an episode, 12 hex digits: equal digits, equal flights on one machine."""
    package, digest = Path(__file__).resolve().parents[1], hashlib.sha256()
    files = [file for room in _ROOMS for file in sorted((package / room).rglob("*")) if file.suffix in _SOURCES]
    for file in [*files, *(package / name for name in _FILES)]:
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


_FORMAT = 1

AVERAGED = (
    "c_vis_auc",
    "c_vis_final",
    "c_vis_m2",
    "c_visit",
    "c_visit_auc",
    "collisions_per_minute",
    "collisions_per_100m",
    "path_length",
    "clearance_p5",
    "seen_per_metre",
)
"""Metrics averaged over scenes in the summary."""


_FRACTIONS = frozenset({"c_vis_auc", "c_vis", "c_visit"})
"""Warehouse columns that hold fractions of 1."""

_PERCENTAGE = re.compile(r"(c_vis|c_visit|c_surf|c_seen)_(auc|final|at_\d+|auc_low|auc_high|auc_iqm)")
"""Names whose values are percentages."""

_CURVE_VALUE = re.compile(
    r"(c_vis|c_visit)_at_\d+|c_surf_(auc|final|m2|at_\d+)|c_seen_(auc|final)|success|spl|soft_spl|goal_distance|height_(mean|max)"
)
"""Further metrics that the summary averages where every episode has them."""

_STEPS_TO = re.compile(r"(c_vis|c_visit|c_surf)_(steps|metres)_to_\d+")
"""Metrics whose median is in the summary."""

_IDENTITY = ("scene", "start", "scene_hash", "start_x", "start_y", "start_z", "start_yaw", "max_steps", "decision_hz",
             "view_radius", "floor_cell")  # fmt: skip
"""Columns that every episode needs for pairing."""
_SUMMARY = ("scenes", "starts", "max_steps", "c_vis_auc")
"""Numbers every summary holds."""
_BOUNDS = ("low", "high")
"""Suffixes of interval bounds, None for a single flight."""

_LOWER_IS_BETTER = frozenset(
    {"collisions", "collisions_per_minute", "collisions_per_100m", "goal_distance", "recovery_steps"}
    | {f"{name}_steps_to_{share}" for name in ("c_vis", "c_visit", "c_surf") for share in (50, 75, 90, 95)}
    | {"c_vis_metres_to_90", "c_vis_metres_to_95"}
)
_COVERAGE = re.compile(r"(c_vis|c_visit|c_surf|c_seen)(_(auc|final|m2|at_\d+|(steps|metres)_to_\d+))?|seen_per_metre")
_HIGHER_IS_BETTER = frozenset({"collision_free", "clearance_p5", "success", "spl", "soft_spl"})


def direction(metric: str, task: str = "explore") -> int:
    """Return a metric's direction of improvement: 1 to maximise, −1 to minimise, 0 for none.

    Args:
        metric: Name of an episode metric.
        task: The task flown; in point-goal flight coverage has no direction.
    """
    if _COVERAGE.fullmatch(metric) and task != "explore":
        return 0
    if metric in _LOWER_IS_BETTER:
        return -1
    return 1 if metric in _HIGHER_IS_BETTER or _COVERAGE.fullmatch(metric) else 0


@dataclass(frozen=True)
class EvalResult:
    """Evaluation result of one subject: its episodes on frozen starts.

    `episodes`, `trajectories`, `seen` and `yaws` are parallel lists, ordered by scene and start.
    """

    subject: str
    """Name of the subject: a pilot, a model version, or a checkpoint's file name."""
    config: EvalConfig
    """The protocol it flew by."""
    episodes: list[dict[str, Any]]
    """One plain row per episode: subject, start, and every metric by name."""
    summary: dict[str, Any]
    """Summary row: means over scenes, IQM, intervals, identity."""
    trajectories: list[np.ndarray] = field(default_factory=list, repr=False)
    """Start and position after each decision, float32 (T+1, 3) each [m]."""
    seen: list[np.ndarray] = field(default_factory=list, repr=False)
    """Floor cells of each storey seen in the end, bool (S, nx, nz) each."""
    yaws: list[np.ndarray] = field(default_factory=list, repr=False)
    """Yaw at each position, float32 (T+1,) each [rad]."""

    @property
    def evaluation_id(self) -> str:
        """Hash of subject, weights, scenes and protocol; a repeated flight has the same id."""
        return str(self.summary["evaluation_id"])

    @property
    def scenes(self) -> list[str]:
        """Names of the scenes, in order."""
        return list(dict.fromkeys(str(row["scene"]) for row in self.episodes))

    def by_scene(self, metric: str) -> dict[str, list[float]]:
        """Group a metric's values by scene, in the order of the starts.

        Raises:
            EvaluationError: The metric is unknown, or an episode has no value of it.
        """
        values: dict[str, list[float]] = {}
        for row in self.episodes:
            if metric not in row:
                numeric = sorted(key for key, value in row.items() if isinstance(value, int | float))
                raise EvaluationError(f"no metric {metric!r}; allowed: {', '.join(numeric)}")
            if row[metric] is None:
                where = f"scene {row['scene']}, start {row['start']}"
                raise EvaluationError(f"{metric} has no value in {where} of {self.subject}; choose another metric")
            if not isinstance(row[metric], int | float):
                raise EvaluationError(f"{metric} is {row[metric]!r}, not a number; choose another metric")
            values.setdefault(str(row["scene"]), []).append(float(row[metric]))
        return values

    def trajectories_of(self, scene: str) -> list[np.ndarray]:
        """Return the trajectories flown in one scene, in the order of the starts."""
        return [path for row, path in zip(self.episodes, self.trajectories, strict=True) if row["scene"] == scene]

    @property
    def course(self) -> str:
        """Hash of protocol, scenes and starts, as the warehouse's view `courses` computes it."""
        starts = ",".join(sorted({f"{row['scene_hash']}:{row['start']}" for row in self.episodes}))
        return hashlib.md5(f"{config_hash(self.config)}/{starts}".encode(), usedforsecurity=False).hexdigest()[:8]

    def to_rows(self, split: str | None = None) -> dict[str, list[dict[str, Any]]]:
        """Convert to warehouse rows by table: `evaluations`, `named_courses`, and `episodes` with one row per episode.

        The warehouse stores `c_vis_auc`, `c_vis` and `c_visit` as fractions of 1 and puts units into names
        (`path_length_m`, `reachable_m2`); every other percentage has the suffix `_percent`.

        Args:
            split: Part of the corpus that the scenes are.
        """
        renamed = {
            "c_vis_final": "c_vis",
            "path_length": "path_length_m",
            "floor_area": "reachable_m2",
            "wall_seconds": "wall_time_seconds",
        }

        def column(key: str, value: object) -> tuple[str, object]:
            name = renamed.get(key, key)
            if name in _FRACTIONS:
                return name, value / 100.0 if isinstance(value, int | float) else None
            return f"{name}_percent" if _PERCENTAGE.fullmatch(key) else name, value

        head, *episodes = (
            dict(column(key, value) for key, value in source.items()) for source in (self.summary, *self.episodes)
        )
        protocol = {"config": self.config.model_dump(mode="json"), "eval_config_hash": config_hash(self.config)}
        scenes, sensor = {str(row["scene"]): row["scene_hash"] for row in self.episodes}, self.summary.get("sensor")
        name = f"{split or self.config.task}-{len(scenes)}x{self.config.starts}x{self.config.max_steps}"
        name += f"-seed{self.config.seed}" if self.config.seed else ""
        name += "" if sensor in (None, "clean") else f"-{sensor}"
        course = {
            "course": self.course,
            "name": name,
            "task": self.config.task,
            "protocol": protocol["eval_config_hash"],
            "scenes": scenes,
            "starts": self.config.starts,
            "decisions": self.config.max_steps,
            "sensor": sensor,
            "config": protocol["config"],
        }
        return {
            "evaluations": [head | protocol | ({"split": split} if split else {})],
            "named_courses": [course],
            "episodes": [{"evaluation_id": self.evaluation_id, **row} for row in episodes],
        }

    def save(self, path: Path | str) -> Path:
        """Save rows and summary as JSON, atomically; paths are not stored.

        Raises:
            EvaluationError: The file cannot be written.
        """
        path = Path(path)
        document = {
            "navi_evaluation": _FORMAT,
            "subject": self.subject,
            "config": self.config.model_dump(mode="json"),
            "summary": self.summary,
            "episodes": self.episodes,
        }
        if os.path.exists(path) and not os.path.isfile(path):
            # The rename below would replace a device by a file.
            raise EvaluationError(f"cannot write {path}: it exists and is no regular file")
        with EvaluationError.of_system(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, json.dumps(document, indent=1).encode())
        return path

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Load a saved evaluation from JSON.

        Raises:
            EvaluationError: The file is missing or is no saved evaluation.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise EvaluationError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"{path} is not JSON: {error}") from None
        if not isinstance(document, dict) or document.get("navi_evaluation") != _FORMAT:
            raise EvaluationError(
                f"{path} is no saved evaluation; make one with `navi evaluate SUBJECT --out {as_argument(path)}`"
            )
        try:
            result = cls(
                subject=str(document["subject"]),
                config=parse_config(EvalConfig, document["config"]),
                episodes=[dict(row) for row in document["episodes"]],
                summary=dict(document["summary"]),
            )
            for name in _IDENTITY:
                _ = [row[name] for row in result.episodes]
            for name in (*_SUMMARY, *(f"c_vis_auc_{bound}" for bound in _BOUNDS)):
                value = result.summary[name]
                if not isinstance(value, int | float) and (value is not None or name in _SUMMARY):
                    raise TypeError(f"{name} of the summary is {value!r}")
            if not result.episodes or not all(isinstance(row["scene"], str) for row in result.episodes):
                raise ValueError("it has no episodes, or one of them names no scene")
            values = result.by_scene("c_vis_auc")
            if len(values) < FEW_SCENES:
                # Older files hold the bootstrap interval, which is too narrow for few scenes, or one beyond 0 or 100.
                result.summary.update(_bounds("c_vis_auc", percentage_interval(values)))
            return result
        except (EvaluationError, KeyError, TypeError, ValueError) as error:
            raise EvaluationError(f"{path} is a broken evaluation: {error}") from None


def summarise(
    subject: str, config: EvalConfig, episodes: list[dict[str, Any]], extra: dict[str, Any]
) -> dict[str, Any]:
    """Aggregate an evaluation's episodes to its summary row: means, IQM, intervals, identity.

    Args:
        subject: Name of the subject.
        config: The protocol.
        episodes: Rows of the episodes, not empty.
        extra: Identity of the subject (kind, weights hash, …), copied into the row.
    """
    curves = [name for name in episodes[0] if _CURVE_VALUE.fullmatch(name)]
    averaged = [*AVERAGED, *(name for name in curves if all(row.get(name) is not None for row in episodes))]
    table: dict[str, dict[str, list[float]]] = {metric: {} for metric in (*averaged, "collision_free")}
    for row in episodes:
        for metric, scenes in table.items():
            scenes.setdefault(str(row["scene"]), []).append(float(row[metric]))
    headlines = dict.fromkeys(("c_vis_auc", config.coverage_metric))
    bounds = [_bounds(name, percentage_interval(table[name], seed=config.seed)) for name in headlines]
    medians = {
        f"{metric}_median": float(np.median([float(row[metric]) for row in episodes]))
        for metric in ("collisions_per_minute", "collisions_per_100m")  # one stuck episode can dominate a mean
    }
    scene_hashes = {str(row["scene"]): str(row["scene_hash"]) for row in episodes}
    scenes_hash = short_hash(sorted(scene_hashes.items()))
    return {
        "evaluation_id": short_hash([subject, extra.get("weights_hash"), config_hash(config), scenes_hash]),
        "subject": subject,
        **extra,
        "seed": config.seed,
        "deterministic": config.deterministic,
        "task": config.task,
        "sensor": episodes[0].get("sensor"),
        "config_hash": config_hash(config),
        "flight_code": flight_code(),
        "scenes_hash": scenes_hash,
        "scenes": len(scene_hashes),
        "starts": config.starts,
        "episodes": len(episodes),
        "max_steps": config.max_steps,
        **{metric: mean_of_scenes(table[metric]) for metric in averaged},
        **{name: value for each in bounds for name, value in each.items()},
        "c_vis_auc_iqm": interquartile_mean([float(row["c_vis_auc"]) for row in episodes]),
        **medians,
        **_steps_reached(episodes),
        "collision_free_rate": mean_of_scenes(table["collision_free"]),
        "recovery_steps": sum(row.get("recovery_steps", 0) for row in episodes),
    }


def _bounds(metric: str, interval: Interval) -> dict[str, float | None]:
    ends = zip(_BOUNDS, (interval.low, interval.high), strict=True)
    return {f"{metric}_{bound}": None if math.isnan(value) else value for bound, value in ends}


def _steps_reached(episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the median decisions and metres to each reported coverage; None if half never get there.

    A mean would cover fast episodes only; an episode that never reaches the value counts as the latest.
    """
    medians: dict[str, Any] = {}
    for name in (name for name in episodes[0] if _STEPS_TO.fullmatch(name)):
        steps = [math.inf if row.get(name) is None else float(row[name]) for row in episodes]
        median = sorted(steps)[len(steps) // 2]
        medians[f"{name}_median"] = None if math.isinf(median) else median
    return medians


def short_hash(identity: object) -> str:
    """Hash plain JSON data to 16 hex digits (SHA-256)."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
