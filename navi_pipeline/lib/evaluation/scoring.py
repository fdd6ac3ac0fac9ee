"""Evaluation of policies and pilots on held-out scenes (each combination once), comparisons and ranking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import EvalConfig, config_hash
from navi_core.errors import EvaluationError
from navi_core.record import navi_home
from navi_pipeline.lib.corpus.scenes import load_split, read_corpus
from navi_pipeline.lib.records import content_key, pipeline_folder, pipeline_log, read_document, write_document
from navi_pipeline.lib.reports.pages import embedded_picture
from navi_pipeline.lib.training.policies import policy_name
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from navi_core.evaluate import Comparison, Course, EvalResult
    from navi_core.models import ModelVersion
    from navi_core.scenes import Scene

PILOTS = ("random", "forward-plus", "frontier", "compass")
"""Scripted pilots that every policy is compared with."""

_MAPS = 3
_VERSION = 2


@dataclass(frozen=True)
class Score:
    """Evaluation results of several subjects on one split: a policy and pilots, or all scripted pilots.

    Attributes:
        results: Subject name → result; a policy first.
        comparisons: Pilot → metric → comparison of the policy with it; empty without a policy.
        maps: Markdown pictures of the paths.
    """

    results: dict[str, EvalResult]
    comparisons: dict[str, dict[str, Comparison]]
    maps: list[str]

    @property
    def reused(self) -> bool:
        """True if nothing was flown now: a saved result has no trajectories."""
        return not any(result.trajectories for result in self.results.values())


def score_policy(policy: dict[str, Any], scenes: SplitScenes, config: EvalConfig) -> Score:
    """Evaluate a policy and the pilots on one split and compare them.

    Args:
        policy: The policy's document (see `policies`).
        scenes: Scenes of a split.
        config: The protocol.

    Raises:
        EvaluationError: The policy cannot be flown by this protocol.
    """
    from navi_core.evaluate import compare

    ours = flown_policy(policy, scenes, config)
    results = {policy_name(policy): ours, **{pilot: flown(pilot, scenes, config) for pilot in PILOTS}}
    comparisons = {
        pilot: {metric: compare(ours, results[pilot], metric) for metric in ("c_vis_auc", "collisions_per_minute")}
        for pilot in PILOTS
    }
    key = content_key(policy["weights_hash"], scenes.key, config_hash(config))
    maps = draw_flights(scenes, results, config, key)
    return Score(results, comparisons, maps)


class SplitScenes:
    """Lazily loaded scenes of a split; names and content key are known without loading.

    Args:
        split: Split of the corpus.
        optional: Whether it may have no scene.

    Raises:
        EvaluationError: It has none.
    """

    def __init__(self, split: str, *, optional: bool = False) -> None:
        rows = [row for row in read_corpus() if row["split"] == split]
        if not rows and not optional:
            raise EvaluationError(f"the corpus has no {split} scene; materialize scene_sources with {split} above 0")
        self.split, self.names = split, [row["name"] for row in rows]
        self.key = content_key([[row["name"], row["content_hash"]] for row in rows])
        self._course: Course | None = None

    @cached_property
    def loaded(self) -> list[Scene]:
        """Scenes of the split, loaded at the first access."""
        return load_split(self.split)

    def course(self, config: EvalConfig, vocabulary: Mapping[str, int] | None = None) -> Course:
        """Return the evaluation course of these scenes; the floors of the latest protocol are searched once.

        Args:
            config: The protocol.
            vocabulary: Semantic id by name of a policy's training; None builds it from the scenes.
        """
        from navi_core.evaluate import build_course

        if self._course is None or self._course.config != config:
            self._course = build_course(self.loaded, config)
        return self._course.with_vocabulary(vocabulary)


def flown_policy(
    policy: dict[str, Any], scenes: SplitScenes, config: EvalConfig, *, confirms: bool = False
) -> EvalResult:
    """Evaluate a trained policy, or load its result (see `flown`); `confirms` marks the confirmation of a win."""
    return flown(
        Path(policy["checkpoint"]),
        scenes,
        config,
        name=policy_name(policy),
        weights=policy["weights_hash"],
        columns={
            "run_id": policy["run_id"],
            "step": policy["steps"],
            "model_version": policy["version"],
            **({"confirms": True} if confirms else {}),
        },
    )


def flown(
    subject: Path | ModelVersion | str,
    scenes: SplitScenes,
    config: EvalConfig,
    *,
    name: str | None = None,
    weights: str | None = None,
    columns: dict[str, Any] | None = None,
) -> EvalResult:
    """Evaluate a subject on scenes and record the rows, or load the saved result.

    Args:
        subject: Subject as in `navi_core.evaluate.evaluate`.
        scenes: Scenes of a split.
        config: The protocol.
        name: Name in tables; by default a pilot's own.
        weights: Hash of a policy's weights; None for a pilot.
        columns: Further columns of its `evaluations` row.

    Returns:
        Result; a saved one holds no trajectories.
    """
    from navi_core.evaluate import EvalResult, evaluate, flight_code
    from navi_core.evaluate.flight.subjects import resolve_subject

    name = name or str(subject)
    custom = own_networks_of(subject)
    key = content_key(name, weights, scenes.key, config_hash(config), flight_code(), _VERSION, *custom)
    file = navi_home() / "evaluations" / f"{key}.json"
    if file.exists():
        return EvalResult.load(file)
    resolved = resolve_subject(subject, config, name=name)
    result = evaluate(resolved, scenes.course(config, resolved.vocabulary))
    with pipeline_log(f"evaluate-{result.evaluation_id}", seed=config.seed, config_hash=config_hash(config)) as log:
        for table, rows in result.to_rows(scenes.split).items():
            for row in rows:
                log.row(table, row | (columns or {} if table == "evaluations" else {}))
    # Rows first: a result that can be loaded is one whose rows are durable.
    result.save(file)
    return result


def own_networks_of(subject: object) -> list[str]:
    """Return the source digests of a subject's custom networks; empty for a pilot and for Navi's own networks."""
    from navi_core.models import ModelVersion, load_checkpoint
    from navi_core.policy import custom_networks

    if not isinstance(subject, ModelVersion | Path):
        return []
    model = load_checkpoint(subject) if isinstance(subject, Path) else subject
    return list(filter(None, [custom_networks(model.encoder_backend, model.temporal_core)]))


def summary_rows(score: Score) -> list[dict[str, Any]]:
    """Return one table row per evaluated policy: coverage [%], collisions, path, AUC difference with its interval."""
    return [
        result_row(name, result) | {"lead of the policy, AUC": _lead(score.comparisons.get(name))}
        for name, result in score.results.items()
    ]


def _lead(against: dict[str, Comparison] | None) -> str:
    """Format the policy's mean AUC difference to a pilot with its confidence interval; empty for itself."""
    if not against:
        return ""
    auc = against["c_vis_auc"]
    bounds = "" if auc.low != auc.low else f" [{auc.low:+.1f}, {auc.high:+.1f}]"  # one flight has none
    return f"{auc.mean_difference:+.1f}{bounds}"


def result_row(name: str, result: EvalResult) -> dict[str, Any]:
    """Return one subject's display row: coverage, collisions, path length."""
    numbers = result.summary
    return {
        "subject": name,
        "C_vis AUC %": round(numbers["c_vis_auc"], 1),
        "C_vis %": round(numbers["c_vis_final"], 1),
        "C_visit %": round(numbers["c_visit"], 1),
        "collisions/min": round(numbers["collisions_per_minute"], 2),
        "path m": round(numbers["path_length"], 1),
    }


def comparison_row(comparison: Comparison) -> dict[str, Any]:
    """Convert a statistical comparison to a dictionary for metadata and JSON."""
    return {
        "metric": comparison.metric,
        "policy": comparison.mean_a,
        "pilot": comparison.mean_b,
        "difference": comparison.mean_difference,
        **{name: comparison.to_row()[name] for name in ("low", "high")},
        "better": comparison.better,
        "sentence": comparison.sentence,
    }


def draw_flights(scenes: SplitScenes, results: dict[str, EvalResult], config: EvalConfig, key: str) -> list[str]:
    """Draw top-down maps of the first start of the first scenes, or load the maps drawn before.

    Args:
        scenes: Scenes of the evaluation.
        results: Subject name → result; a loaded result has no paths.
        config: The protocol.
        key: Cache key of the pictures.

    Returns:
        Markdown pictures; none where not one subject was flown now and nothing was drawn before.
    """
    file = navi_home() / "evaluations" / f"{key}.maps.json"
    if file.exists():
        return list(read_document(file, made_by="policy_evaluation")["maps"])
    drawn = {name: result for name, result in results.items() if result.trajectories}
    if not drawn:
        return []
    from navi_core.evaluate import top_down_map
    from navi_core.service.viewing.meshes import store_mesh

    course = scenes.course(config)
    maps, flights = [], []
    for index, scene in enumerate(course.field.scenes[:_MAPS]):
        paths = {name: result.trajectories_of(scene.name)[0] for name, result in drawn.items()}
        maps.append(embedded_picture(top_down_map(course.field, index, paths, course.floors[index]), scene.name))
        lines = {name: path.round(2).tolist() for name, path in paths.items()}
        flights.append({"scene": scene.name, "mesh": store_mesh(scene), "paths": lines})
    write_document(file, {"maps": maps, "flights": flights})
    return maps


def write_verdict(
    profile: str, policy: dict[str, Any], test: Score, external: Score | None, config: EvalConfig
) -> None:
    """Write the JSON document of an evaluation: tables and comparisons per split.

    Args:
        profile: Training profile.
        policy: Document of the policy that flew.
        test: Its score on the test scenes.
        external: Its score on the user's scenes, if there are any.
        config: The protocol.
    """

    def part(score: Score) -> dict[str, Any]:
        return {
            "table": summary_rows(score),
            "comparisons": {
                pilot: {metric: comparison_row(value) for metric, value in metrics.items()}
                for pilot, metrics in score.comparisons.items()
            },
            "scenes": len(next(iter(score.results.values())).scenes),
            "episodes": len(next(iter(score.results.values())).episodes),
            "reused": score.reused,
            "inputs": {name: result.summary.get("inputs") for name, result in score.results.items()},
        }

    document = {
        "profile": profile,
        "policy": policy,
        "config": config.model_dump(mode="json"),
        "test": part(test),
        "external": None if external is None else part(external),
    }
    for seed in (None, policy["seed"]):
        write_document(_path(profile, seed), document)


def read_verdict(profile: str, seed: int | None = None) -> dict[str, Any]:
    """Load the JSON document of a profile's evaluation, by default the latest.

    Raises:
        RecordError: The policy has not been evaluated.
    """
    partition = profile if seed is None else f"{profile}|{seed}"
    return read_document(_path(profile, seed), made_by=f"policy_evaluation, partition {partition},")


def read_verdicts(profile: str) -> dict[int, dict[str, Any]]:
    """Load the evaluations of a profile by seed, of every seed that was evaluated."""
    paths = _path(profile).parent.glob(f"{profile}-seed*.json")
    verdicts = [read_document(path, made_by="policy_evaluation") for path in paths]
    return {verdict["policy"]["seed"]: verdict for verdict in verdicts}


def _path(profile: str, seed: int | None = None) -> Path:
    return pipeline_folder() / "verdicts" / (f"{profile}.json" if seed is None else f"{profile}-seed{seed}.json")


_SHOWN = ("rank", "subject", "kind", "model", "c_vis_auc_percent", "c_seen_auc_percent", "low", "high",
          "c_vis_percent", "c_visit_percent", "collisions_per_minute", "path_length_m", "scenes", "scenes_trained_on",
          "episodes", "decisions", "split")  # fmt: skip


def fly_baselines(config: EvalConfig, *, pilots: Sequence[str], on_line: Callable[[str], None]) -> Score:
    """Evaluate scripted pilots on the test scenes, once per protocol.

    Args:
        config: The protocol.
        pilots: Their names.
        on_line: Called with a line for each pilot.

    Raises:
        EvaluationError: The corpus has no test scene.
    """
    scenes = SplitScenes("test")
    results = {}
    for pilot in pilots:
        result = results[pilot] = flown(pilot, scenes, config)
        on_line(
            f"{pilot}: C_vis AUC {result.summary['c_vis_auc']:.1f} %{'' if result.trajectories else ', flown before'}"
        )
    maps = draw_flights(scenes, results, config, content_key("baselines", scenes.key, config_hash(config), *pilots))
    coverage = {pilot: float(result.summary["c_vis_auc"]) for pilot, result in results.items()}
    write_document(_baselines_path(), {"c_vis_auc_percent": coverage, "protocol": config.model_dump(mode="json")})
    return Score(results, {}, maps)


def read_baselines() -> dict[str, float]:
    """Load the mean coverage by pilot [%].

    Raises:
        RecordError: The pilots have not been evaluated.
    """
    return dict(read_document(_baselines_path(), made_by="baseline_evaluation")["c_vis_auc_percent"])


def headline(row: Mapping[str, Any]) -> float:
    """Return the coverage of a leaderboard's row that ranks [%]: C_seen with a limited sensor, else C_vis."""
    return float(row["c_vis_auc_percent"] if row["c_seen_auc_percent"] is None else row["c_seen_auc_percent"])


def ranking(course: str | None = None) -> list[dict[str, Any]]:
    """Query the leaderboard of one course, best first. Subjects trained on its scenes come last, with None as rank.

    Args:
        course: Name or hash; by default the pinned one, on which the champion was promoted.
    """
    frame = Warehouse().query(
        f"select {', '.join(_SHOWN)} from leaderboard where chosen "
        "order by rank nulls last, coalesce(c_seen_auc_percent, c_vis_auc_percent) desc",
        values={} if course is None else {"course": course},
    )
    # A pilot has no version, which pandas returns as NaN.
    return [{k: (None if v is None or v != v else v) for k, v in row.items()} for row in frame.to_dict("records")]


def worth_drawing(rows: list[dict[str, Any]], most: int = 40) -> list[dict[str, Any]]:
    """Select the first rows of a ranking and all pilots for the charts: hundreds of versions would be unreadable.

    Args:
        rows: Rows from `ranking`.
        most: Maximum number of rows, before pilots are added.
    """
    return [row for place, row in enumerate(rows) if place < most or row["kind"] == "pilot"]


def _baselines_path() -> Path:
    return pipeline_folder() / "baselines.json"
