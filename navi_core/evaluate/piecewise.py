"""Resumable evaluations: a few scenes at a time, each piece stored in a file.

An episode depends on its start, the protocol and the weights alone, so the joined pieces equal the whole bit for bit.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate.flight.course import Course, build_course
from navi_core.evaluate.flight.subjects import OWN_NETWORKS, Subject, resolve_subject
from navi_core.evaluate.protocol import evaluate
from navi_core.evaluate.result import EvalResult, flight_code, summarise
from navi_core.models import ModelVersion
from navi_core.scenes import Scene

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
    """Fly every subject in every scene; stored pieces are read.

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
        scenes, courses = [load() for _, load in group], dict[Any, Course]()
        label = group[0][0] if len(group) == 1 else f"{group[0][0]}+{len(group) - 1}"
        for subject, one, kept in zip(subjects, resolved, pieces, strict=True):
            file = folder / one.flyer.name / f"{label}.json"
            piece = _stored(file, config, scenes, one)
            if piece is None:
                # Semantic ids must be those of the policy's training.
                words = None if one.vocabulary is None else tuple(sorted(one.vocabulary.items()))
                if words not in courses:
                    courses[words] = build_course(scenes, config, vocabulary=one.vocabulary)
                piece = evaluate(subject, courses[words])
                piece.save(file)
            kept.append(piece)
            done += 1
            if progress is not None:
                progress(f"{one.flyer.name} {label}", done, total)
    return [join_results(kept) for kept in pieces]


def join_results(parts: Sequence[EvalResult]) -> EvalResult:
    """Join evaluations of one subject and protocol on different scenes.

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
    """Return the smallest number of scenes with at most 10 % padding rows, or else the best one."""

    def padding(size: int) -> float:
        rows = size * config.starts
        return -rows % config.block / (rows + -rows % config.block)

    sizes = range(1, min(config.block, scenes) + 1)
    return next((size for size in sizes if padding(size) <= _MOST_PADDING), min(sizes, key=padding))


def _stored(file: Path, config: EvalConfig, scenes: Sequence[Scene], subject: Subject) -> EvalResult | None:
    """Return the stored piece of the same protocol, weights, code and scenes, or None."""
    if not file.is_file():
        return None
    piece = EvalResult.load(file)
    networks = subject.identity.get(OWN_NETWORKS)
    wanted = {"weights_hash": subject.fingerprint(), "flight_code": flight_code(), OWN_NETWORKS: networks}
    same = piece.config == config and wanted == {name: piece.summary.get(name) for name in wanted}
    flown = {(row["scene"], row["scene_hash"]) for row in piece.episodes}
    return piece if same and flown == {(scene.name, scene.content_hash()) for scene in scenes} else None
