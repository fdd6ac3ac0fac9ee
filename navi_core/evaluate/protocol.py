"""Evaluation protocol: roll out a subject from frozen starts without learning; every episode becomes a row.

course = build_course(scenes, config)
ours = evaluate("checkpoint.pt", course)
base = evaluate("forward-plus", course)
print(compare(ours, base).sentence)

Point-goal flights are measured by SPL. SPL, success weighted by path length, is S · l / max(p, l) of an episode: S
whether it stopped at the goal, l the geodesic distance from start to goal, p the length of the path flown (Anderson et
al. 2018, On evaluation of embodied navigation agents, arXiv:1807.06757). SoftSPL replaces S by 1 − d/l, the covered
fraction of the way, with d the remaining geodesic distance (Datta et al. 2020, arXiv:2009.03231).

Long evaluations are resumable: a few scenes at a time, each piece stored in a file. An episode depends on its start,
the protocol and the weights alone, so the joined pieces equal the whole bit for bit.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from navi_core.config import EvalConfig, SensorConfig, config_hash
from navi_core.errors import EvaluationError
from navi_core.evaluate.flight.course import Course, Start, build_course
from navi_core.evaluate.flight.frozen_starts import Flight, fly
from navi_core.evaluate.flight.subjects import OWN_NETWORKS, Subject, require_vocabulary, resolve_subject
from navi_core.evaluate.metrics.coverage import Coverage, curve_metrics, mean_curve, measure_coverage
from navi_core.evaluate.metrics.surface import measure_surface
from navi_core.evaluate.result import EvalResult, flight_code, summarise
from navi_core.models import ModelVersion
from navi_core.pilots import Pilot
from navi_core.policy import NavigationPolicy
from navi_core.scenes import Scene
from navi_core.world.floor.reachable import FloorMap
from navi_core.world.goals import way_lengths, way_to
from navi_core.world.sensor.profiles import PROFILES


def path_weight(geodesic: float, path: float) -> float:
    """Return the SPL (success weighted by path length) weight l / max(p, l).

    Args:
        geodesic: Shortest distance l [m].
        path: Length of the flown path p [m].
    """
    return geodesic / max(path, geodesic) if geodesic > 0 else 1.0


def goal_metrics(floor: FloorMap, start: Start, flight: Flight, path: float) -> dict[str, Any]:
    """Compute the point-goal metrics of an episode's row: success, SPL, SoftSPL, distances.

    Args:
        floor: Reachable floor of its scene.
        start: Start and goal.
        flight: The flight.
        path: Length of the flown path [m].

    Returns:
        `goal_x`, `goal_y`, `goal_z` [m]; `success`; `spl`, `soft_spl` in [0, 1]; `geodesic`, the distance from the
        start, and `goal_distance`, the remaining distance [m].

    Raises:
        EvaluationError: The start has no goal, or the goal is unreachable.
    """
    if start.goal is None:
        raise EvaluationError(
            f"start {start.index} of {start.scene} has no goal; build the course with --task point_goal"
        )
    ways = way_to(floor, np.array(start.goal))
    positions = flight.positions.astype(np.float64)
    along = way_lengths(floor, ways, positions)
    known = np.flatnonzero(np.isfinite(along))
    if not len(known):
        raise EvaluationError(f"the goal of start {start.index} of {start.scene} is unreachable; take another seed")
    first, at = float(along[0]), int(known[-1])
    # Close to a wall no distance is known: take the last known one plus the straight line from there.
    left = float(along[at] + np.linalg.norm(positions[-1] - positions[at]))
    weight = path_weight(first, path)
    return {
        **dict(zip(("goal_x", "goal_y", "goal_z"), start.goal, strict=True)),
        "success": flight.success,
        "spl": weight if flight.success else 0.0,
        "soft_spl": max(0.0, 1.0 - left / first) * weight if first > 0 else float(flight.success),
        "geodesic": first,
        "goal_distance": left,
    }


_SHARES_WITH_WAY = (90, 95)
"""Coverage levels [%] for which the way flown is reported."""
_SHORTEST_PATH = 1.0
"""Shortest path in a denominator [m], so that a stuck drone gives no infinity."""


# Half of its lines document the arguments.
def evaluate(
    subject: str | Path | Pilot | NavigationPolicy | ModelVersion | Subject,
    scenes: Sequence[Scene] | Course,
    config: EvalConfig | None = None,
    *,
    name: str | None = None,
    vocabulary: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EvalResult:
    """Evaluate a subject from the frozen starts of scenes; measure coverage, collisions and path length.

    The weights are hashed before and after to prove that nothing was learned. An episode depends on its start, the
    protocol and the weights alone. Flights run on one thread, which is fastest for small blocks and reproducible; the
    caller's thread settings are restored.

    Args:
        subject: Name of a pilot, path of a checkpoint, a policy, a registered version, or a subject prepared by
            `resolve_subject` for the same protocol.
        scenes: Scenes, or a course from `build_course` (cheaper for several subjects).
        config: The protocol; a course has its own.
        name: Name of the subject in the results; by default its own.
        vocabulary: Semantic id by name; by default that of the checkpoint, else built from the scenes. A course has its
            own.
        progress: Called as progress(decisions done, decisions in all).

    Raises:
        EvaluationError: The subject is unknown, the decision rate differs, there is no scene, or the policy returns
            NaN or Inf.
        CheckpointError: The checkpoint cannot be loaded.
    """
    if isinstance(scenes, Course):
        course = scenes
        if config is not None and config != course.config:
            raise EvaluationError("the course was made for another configuration; build it with this one")
        resolved = resolve_subject(subject, course.config, name=name)
    else:
        resolved = resolve_subject(subject, config or EvalConfig(), name=name)
        course = build_course(scenes, config or EvalConfig(), vocabulary=vocabulary or resolved.vocabulary)
    if resolved.vocabulary is not None:
        surfaces = {surface for scene in course.field.scenes for surface in scene.semantic_names.values()}
        require_vocabulary(resolved, course.field.vocabulary, surfaces, "build the course with it")
    config = course.config

    began = time.perf_counter()
    before = resolved.fingerprint()
    with _one_thread():
        flights = fly(course.field, resolved.flyer, course.starts, config, progress)
        covered = [
            measure_coverage(
                course.field,
                course.truths[start.scene_index],
                start.scene_index,
                flight.positions,
                view_radius=config.view_radius,
                yaws=flight.yaws,
                profile=PROFILES[config.sensor.profiles[0]] if config.sensor.limited else None,
            )
            for start, flight in zip(course.starts, flights, strict=True)
        ]
    if resolved.fingerprint() != before:
        raise EvaluationError(f"the weights of {resolved.flyer.name} changed during its evaluation")
    episodes = [
        {"subject": resolved.flyer.name, **episode_row(course, start, flight, coverage, resolved.flyer.max_distance)}
        for start, flight, coverage in zip(course.starts, flights, covered, strict=True)
    ]
    identity = {
        **resolved.identity,
        "weights_hash": before,
        "scenes_trained_on": len(course.seen(resolved.trained_on)),
    }
    summary = summarise(resolved.flyer.name, config, episodes, identity)
    if config.task == "explore":
        summary["coverage_curve"] = mean_curve(covered, [start.scene for start in course.starts])
    summary["wall_seconds"] = time.perf_counter() - began
    return EvalResult(
        subject=resolved.flyer.name,
        config=config,
        episodes=episodes,
        summary=summary,
        trajectories=[flight.positions for flight in flights],
        seen=[coverage.seen_cells for coverage in covered],
        yaws=[flight.yaws for flight in flights],
    )


def episode_row(
    course: Course, start: Start, flight: Flight, coverage: Coverage, max_distance: float
) -> dict[str, Any]:
    """Build the result row of one episode: start and every metric by name.

    A collision is a decision with at least one reverted substep.
    """
    config = course.config
    steps = len(flight.collided)
    way = np.concatenate([[0.0], np.linalg.norm(np.diff(flight.positions.astype(np.float64), axis=0), axis=1).cumsum()])
    path, height = float(way[-1]), flight.positions[:, 1] - np.float64(flight.positions[0, 1])
    events = int(flight.collided.sum())
    minutes = steps * config.dynamics.decision_seconds / 60.0
    covered = coverage.metrics()
    for share in _SHARES_WITH_WAY:
        steps_to = covered[f"c_vis_steps_to_{share}"]
        covered[f"c_vis_metres_to_{share}"] = None if steps_to is None else float(way[steps_to])
    covered["c_visit"] = covered.pop("c_visit_final")
    if start.goal is not None:
        covered |= goal_metrics(course.floors[start.scene_index], start, flight, path)
    if course.surfaces:
        covered |= _surface_metrics(course, start, flight, max_distance)
    return {
        "scene": start.scene,
        "scene_hash": course.scene_hashes[start.scene_index],
        "start": start.index,
        "start_x": start.position[0],
        "start_y": start.position[1],
        "start_z": start.position[2],
        "start_yaw": start.yaw,
        "seed": config.seed,
        "deterministic": config.deterministic,
        "sensor": _sensor_name(config.sensor),
        "max_steps": config.max_steps,
        "task": config.task,
        "decision_hz": config.dynamics.decision_hz,
        "view_radius": config.view_radius,
        "floor_cell": config.floor_cell,
        "floor_area": course.truths[start.scene_index].area,
        "steps": steps,
        **covered,
        "collisions": events,
        "collisions_per_minute": events / minutes,
        "collisions_per_100m": 100.0 * events / max(path, _SHORTEST_PATH),
        "collision_free": events == 0,
        "recovery_steps": flight.recovery_steps,
        "done_at": flight.done_at,
        "height_mean": float(height.mean()),
        "height_max": float(height.max()),
        "clearance_p5": float(np.percentile(flight.clearance, 5)),
        "path_length": path,
        "seen_per_metre": covered["c_vis_m2"] / max(path, _SHORTEST_PATH),
    }


def _sensor_name(sensor: SensorConfig) -> str:
    """Name a sensor in a row: clean, its profile where it has no fault, or a hash of its settings."""
    if sensor == SensorConfig():
        return "clean"
    return sensor.profiles[0] if sensor == SensorConfig(profiles=sensor.profiles) else config_hash(sensor)


def _surface_metrics(course: Course, start: Start, flight: Flight, max_distance: float) -> dict[str, Any]:
    truth = course.surfaces[start.scene_index]
    seen = measure_surface(course.field, truth, start.scene_index, flight.positions, max_distance=max_distance)
    return curve_metrics("c_surf", 100.0 * seen / truth.voxels.sum(), seen * truth.cell**2)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Context manager that runs torch and the ray kernels on one thread, which is fastest for small blocks."""
    torch_threads, kernel_threads = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        numba.set_num_threads(kernel_threads)


_MOST_PADDING = 0.1
_OF_EPISODES = frozenset({"evaluation_id", "wall_seconds", "coverage_curve"})


def evaluate_in_pieces(
    subjects: Sequence[str | Path | ModelVersion],
    loaders: Sequence[tuple[str, Callable[[], Scene]]],
    config: EvalConfig,
    folder: Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[EvalResult]:
    """Evaluate every subject in every scene, resumable: cached partial results (pieces) are loaded, not flown again.

    Scenes are prepared once for all subjects. The size of a piece keeps the padding of its blocks small.

    Args:
        subjects: As `evaluate` takes them.
        loaders: Name and loader of each scene.
        config: The protocol.
        folder: Folder of the pieces: a subfolder per subject, a file named by the first scene of each piece.
        progress: Called as progress(label, pieces done, pieces in all).

    Returns:
        One result per subject, without paths.

    Raises:
        EvaluationError: As `evaluate`, or a piece cannot be written.
    """
    pieces: list[list[EvalResult]] = [[] for _ in subjects]
    resolved = [resolve_subject(subject, config) for subject in subjects]
    names = [one.flyer.name for one in resolved]
    if len(set(names)) < len(names):
        raise EvaluationError(f"two subjects share a name: {', '.join(names)}; name each once")
    size = _piece_size(config, len(loaders))
    groups = [loaders[first : first + size] for first in range(0, len(loaders), size)]
    done, total = 0, len(subjects) * len(groups)
    for group in groups:
        scenes, course = [load() for _, load in group], None
        label = group[0][0] if len(group) == 1 else f"{group[0][0]}+{len(group) - 1}"
        for subject, one, kept in zip(subjects, resolved, pieces, strict=True):
            file = folder / one.flyer.name / f"{label}.json"
            piece = _stored(file, config, scenes, one)
            if piece is None:
                # Semantic ids must be those of the policy's training.
                if course is None:
                    course = build_course(scenes, config)
                piece = evaluate(subject, course.with_vocabulary(one.vocabulary))
                piece.save(file)
            kept.append(piece)
            done += 1
            if progress is not None:
                progress(f"{one.flyer.name} {label}", done, total)
    return [join_results(kept) for kept in pieces]


def join_results(parts: Sequence[EvalResult]) -> EvalResult:
    """Merge evaluations of one subject and protocol on different scenes.

    Raises:
        EvaluationError: There is no part, or subjects, protocols or weights differ, or a scene occurs twice.
    """
    if not parts:
        raise EvaluationError("there is nothing to join")
    first = parts[0]
    scenes = [scene for part in parts for scene in part.scenes]
    weights = {part.summary.get("weights_hash") for part in parts}
    if any(part.subject != first.subject or part.config != first.config for part in parts) or len(weights) > 1:
        raise EvaluationError("the parts are of different subjects or protocols; evaluate all scenes alike")
    if len(set(scenes)) < len(scenes):
        raise EvaluationError("a scene occurs in two parts; join each scene once")
    episodes = [row for part in parts for row in part.episodes]
    made = summarise(first.subject, first.config, episodes, {})
    identity = {name: value for name, value in first.summary.items() if name not in made and name not in _OF_EPISODES}
    if "scenes_trained_on" in identity:
        identity["scenes_trained_on"] = sum(int(part.summary["scenes_trained_on"]) for part in parts)
    summary = summarise(first.subject, first.config, episodes, identity)
    curves = [part.summary["coverage_curve"] for part in parts if "coverage_curve" in part.summary]
    if len(curves) == len(parts):
        shares = np.array([curve["c_vis_percent"] for curve in curves])
        counts = np.array([len(part.scenes) for part in parts])
        mean = (shares * counts[:, None]).sum(axis=0) / counts.sum()
        summary["coverage_curve"] = {
            "step": curves[0]["step"],
            "c_vis_percent": [round(float(share), 3) for share in mean],
        }
    summary["wall_seconds"] = sum(float(part.summary.get("wall_seconds", 0.0)) for part in parts)
    parallel = {name: [x for part in parts for x in getattr(part, name)] for name in ("trajectories", "seen", "yaws")}
    return EvalResult(first.subject, first.config, episodes, summary, **parallel)


def _piece_size(config: EvalConfig, scenes: int) -> int:
    """Choose the batch size of a piece: the fewest scenes with at most 10 % padding rows, or else the best number."""

    def padding(size: int) -> float:
        rows = size * config.starts
        return -rows % config.block / (rows + -rows % config.block)

    sizes = range(1, min(config.block, scenes) + 1)
    return next((size for size in sizes if padding(size) <= _MOST_PADDING), min(sizes, key=padding))


def _stored(file: Path, config: EvalConfig, scenes: Sequence[Scene], subject: Subject) -> EvalResult | None:
    """Load a cached partial result if protocol, weights, code and scenes are the same; else None."""
    if not file.is_file():
        return None
    piece = EvalResult.load(file)
    networks = subject.identity.get(OWN_NETWORKS)
    wanted = {"weights_hash": subject.fingerprint(), "flight_code": flight_code(), OWN_NETWORKS: networks}
    same = piece.config == config and wanted == {name: piece.summary.get(name) for name in wanted}
    flown = {(row["scene"], row["scene_hash"]) for row in piece.episodes}
    return piece if same and flown == {(scene.name, scene.content_hash()) for scene in scenes} else None
