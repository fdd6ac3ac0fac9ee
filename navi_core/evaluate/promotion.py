"""Gated model promotion: a challenger becomes champion only if shown to be better and to collide no more.

Challenger and champion fly the same frozen starts of validation scenes. A first champion must beat the random pilot. A
challenger that wins flies once more from other starts, because of many challengers on the same starts some win by
chance. Every decision becomes one row of the table `promotions`, refusals included.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from navi_core.config import EvalConfig
from navi_core.errors import CheckpointError, EvaluationError, RegistryError
from navi_core.evaluate.comparison import Comparison, compare, paired_differences
from navi_core.evaluate.flight.course import Course
from navi_core.evaluate.model_card import write_model_card
from navi_core.evaluate.protocol import evaluate
from navi_core.evaluate.result import EvalResult
from navi_core.evaluate.statistics import binomial_bounds, bootstrap_interval
from navi_core.models import ModelVersion, Registry, load_checkpoint, trained_on
from navi_core.scenes import Scene

COLLISION_TOLERANCE = 1.0
"""Tolerated mean rise of collisions per minute while its interval includes 0."""

SAFETY = "collisions_per_minute"
"""Metric in which the challenger must not be worse."""

_FEWEST_SCENES = 2
_LISTED = 5
"""Scenes listed in a refusal."""
_SEEN = "{version}, or an ancestor of it, was trained on {seen} of these scenes; promote on scenes that are new to it"
_CONFIRMING = 1_000_000
"""Seed offset of confirming flights, by which no version is selected."""


@dataclass(frozen=True)
class Decision:
    """Record of a promotion decision: challenger, opponent, comparisons, reason."""

    version: str
    """The challenger."""
    alias: str
    """The requested alias."""
    promoted: bool
    """Whether the alias moves to it."""
    reason: str
    """The verdict in words."""
    previous_version: str | None
    """Version that held the alias; None for a first champion."""
    opponent: str
    """Opponent: the champion or the random pilot."""
    coverage: Comparison
    """Challenger against opponent in coverage."""
    collisions: Comparison
    """Challenger against opponent in collisions per minute."""
    evaluation_id: str
    """The challenger's evaluation."""
    decided_at: str
    """Time of the decision, ISO 8601 in UTC."""

    def to_row(self) -> dict[str, Any]:
        """Convert to a row of the table `promotions`; differences are fractions of 1, as in the whole warehouse."""
        return {
            "alias": self.alias,
            "version": self.version,
            "decided_at": self.decided_at,
            "promoted": self.promoted,
            "previous_version": self.previous_version,
            "reason": self.reason,
            "evaluation_id": self.evaluation_id,
            "opponent": self.opponent,
            "mean_difference": self.coverage.mean_difference / 100.0,
            "low": _none_if_nan(self.coverage.low / 100.0),
            "high": _none_if_nan(self.coverage.high / 100.0),
            "collisions_difference": self.collisions.mean_difference,
            "collisions_low": _none_if_nan(self.collisions.low),
            "collisions_high": _none_if_nan(self.collisions.high),
        }


def _none_if_nan(bound: float) -> float | None:
    """Replace a NaN bound by None."""
    return None if bound != bound else bound


def decide(
    version: str,
    challenger: EvalResult,
    opponent: EvalResult,
    *,
    previous_version: str | None,
    alias: str = "champion",
    tolerance: float = COLLISION_TOLERANCE,
    seen: int = 0,
) -> Decision:
    """Decide a model promotion from paired evaluations of challenger and champion (or random pilot).

    The challenger must be better: the paired interval of the protocol's `coverage_metric` lies above 0. It must not
    collide more: the paired interval of the collisions per minute does not lie above 0, and their mean rises by at most
    `tolerance`. It must not have been trained on any of the scenes.

    Args:
        version: The challenger's version.
        challenger: Its evaluation.
        opponent: The champion's evaluation, or the random pilot's where there is no champion.
        previous_version: The champion's version; None where there is none.
        alias: The requested alias.
        tolerance: Tolerated mean rise of collisions per minute.
        seen: Number of these scenes in its training, see `scenes_seen`; the evaluation's own count applies as well.

    Raises:
        EvaluationError: The starts differ, or there is no champion and the opponent is not the random pilot.
    """
    if previous_version is None and opponent.summary.get("subject") != "random":
        raise EvaluationError("a first champion is judged against the pilot 'random'; evaluate that on the same scenes")
    coverage = compare(challenger, opponent)
    collisions = compare(challenger, opponent, SAFETY)
    # The bounds themselves decide, so that neither a wide interval nor a champion trained on the scenes lets more
    # through; with few scenes also the bootstrap's bound, which is narrower.
    likely = bootstrap_interval(paired_differences(challenger, opponent, SAFETY)).low
    rises = max(likely, collisions.low) > 0 or collisions.mean_difference > tolerance
    seen = max(seen, int(challenger.summary.get("scenes_trained_on") or 0))
    refusals = (
        (seen > 0, f"{version} was trained on {seen} of these scenes"),
        (
            coverage.scenes < _FEWEST_SCENES,
            f"{coverage.scenes} scene is too few; evaluate it on {_FEWEST_SCENES} or more",
        ),
        (not coverage.better, f"not shown to be better: {coverage.sentence}"),
        (rises, f"it collides more: {collisions.sentence}"),
    )
    refused = next((why for holds, why in refusals if holds), None)
    won = f"Promoted: {coverage.sentence} Collisions: {collisions.sentence} {_clean_flights(challenger)}"
    return Decision(
        version=version,
        alias=alias,
        promoted=refused is None,
        reason=won if refused is None else f"Refused, {refused}",
        previous_version=previous_version,
        opponent=opponent.subject,
        coverage=coverage,
        collisions=collisions,
        evaluation_id=challenger.evaluation_id,
        decided_at=datetime.now(UTC).isoformat(timespec="microseconds"),
    )


def _clean_flights(flown: EvalResult) -> str:
    """Format a sentence on the number of flights with collisions, with the 95 % upper bound if there are none."""
    flights, hit = len(flown.episodes), sum(not row["collision_free"] for row in flown.episodes)
    bound = "" if hit else f" (95 % upper bound: {100 * binomial_bounds(0, flights)[1]:.0f} %)"
    return f"{hit} of {flights} flights collided{bound}."


def confirming(config: EvalConfig, version: str) -> EvalConfig:
    """Derive the configuration of the confirmation evaluation: same scenes, other starts for each version.

    Args:
        config: The protocol of the first flight.
        version: The challenger, "v003".
    """
    seed = config.seed + _CONFIRMING + int(version.removeprefix("v"))
    return config.model_copy(update={"seed": seed % 2**31})


def confirmed(first: Decision, again: Decision) -> Decision:
    """Return the final promotion decision: that of the confirmation evaluation, with both score differences.

    The second lead counts, because the first one was selected for being large.
    """
    before = f"{first.coverage.mean_difference:+.2f} on the first starts"
    if again.promoted:
        return replace(again, reason=f"{again.reason} Confirmed on other starts ({before}).")
    return replace(again, reason=f"Refused, its lead ({before}) is not confirmed on other starts. {again.reason}")


def decide_and_confirm(
    version: str,
    first: tuple[EvalResult, EvalResult],
    fly_again: Callable[[EvalConfig], tuple[EvalResult, EvalResult]],
    *,
    previous_version: str | None,
    alias: str = "champion",
    seen: int = 0,
) -> tuple[Decision, list[tuple[EvalResult, EvalResult]]]:
    """Decide a model promotion; a challenger that wins is evaluated once more from other starts.

    Args:
        version: The challenger's version.
        first: Evaluations of challenger and opponent.
        fly_again: Returns both evaluations under another protocol; called for a challenger that wins.
        previous_version: The champion's version; None where there is none.
        alias: The requested alias.
        seen: Number of these scenes in its training, see `scenes_seen`.

    Returns:
        The decision and its pairs of evaluations.

    Raises:
        EvaluationError: See `decide`.
    """
    decision = decide(version, *first, previous_version=previous_version, alias=alias, seen=seen)
    if not decision.promoted:
        return decision, [first]
    again = fly_again(confirming(first[0].config, version))
    second = decide(version, *again, previous_version=previous_version, alias=alias, seen=seen)
    return confirmed(decision, second), [first, again]


def scenes_seen(registry: Registry, version: str, flown: EvalResult) -> int:
    """Count the scenes of an evaluation on which a version or one of its ancestors was trained.

    Old checkpoints hold only their own scenes, so the whole lineage is read.
    """
    known = _training_scenes(registry.lineage(version)[1:])
    before = {str(row["scene"]) for row in flown.episodes if row["scene_hash"] in known}
    return max(int(flown.summary.get("scenes_trained_on") or 0), len(before))


def _training_scenes(entries: Iterable[ModelVersion]) -> set[str]:
    """Collect the content and source hashes of the scenes on which versions were trained."""
    known: set[str] = set()
    for entry in entries:
        try:
            known |= trained_on(load_checkpoint(entry.path))
        except CheckpointError:
            continue  # the ancestor's file is gone or unreadable
    return known


def _require_unseen(version: str, registry: Registry, scenes: Sequence[Scene]) -> None:
    """Validate the scenes before any flight: none in the challenger's training, and enough for a verdict."""
    known = _training_scenes(registry.lineage(version))
    seen = [scene.name for scene in scenes if scene.content_hash() in known or scene.source_hash in known]
    if seen:
        listed = f"{len(seen)} ({', '.join(seen[:_LISTED])}{', …' if len(seen) > _LISTED else ''})"
        raise EvaluationError(_SEEN.format(version=version, seen=listed))
    if len(scenes) < _FEWEST_SCENES:
        raise EvaluationError(
            f"a promotion needs {_FEWEST_SCENES} scenes or more and has {len(scenes)}; name more with --scene"
        )


# Half of its lines document the arguments.
def promote(
    version: str,
    registry: Registry,
    scenes: Sequence[Scene] | Course,
    config: EvalConfig | None = None,
    *,
    alias: str = "champion",
    challenger: EvalResult | None = None,
    opponent: EvalResult | None = None,
    record: Callable[[Decision, list[tuple[EvalResult, EvalResult]]], None] | None = None,
) -> tuple[Decision, list[tuple[EvalResult, EvalResult]]]:
    """Evaluate a version against the holder of an alias; move the alias if it wins twice, on different starts.

    Args:
        version: The challenger, "v003" or an alias such as "latest".
        registry: The model registry.
        scenes: Validation scenes, or a course made of them.
        config: The protocol; a course has its own.
        alias: The alias at stake.
        challenger: Its evaluation on these scenes, if it has been flown already.
        opponent: The evaluation of the alias's holder, or of the random pilot, if it has been flown already.
        record: Called with the result before the alias moves, since a version that holds it cannot be decided again;
            called once more with a refusal where another version took the alias meanwhile.

    Returns:
        The decision, and the evaluations of challenger and opponent: first flight and, if won, the confirming one.

    Raises:
        RegistryError: The version or alias is invalid, or another version took the alias during the flights.
        EvaluationError: The challenger holds the alias already or was trained on one of the scenes, there is only one
            scene, or the two cannot be compared.
    """
    contender = registry.resolve(version)
    registry.check_alias(alias)
    holder = next((entry for entry in registry.list() if alias in entry.aliases), None)
    if holder is not None and holder.version == contender.version:
        raise EvaluationError(f"{contender.version} is the {alias} already")
    defender = holder if holder is not None else "random"
    flown = scenes.field.scenes if isinstance(scenes, Course) else scenes
    if challenger is None:
        _require_unseen(contender.version, registry, flown)
        challenger = evaluate(contender, scenes, config)
    elif seen := scenes_seen(registry, contender.version, challenger):
        raise EvaluationError(_SEEN.format(version=contender.version, seen=seen))

    def fly_again(others: EvalConfig) -> tuple[EvalResult, EvalResult]:
        again = evaluate(contender, flown, others), evaluate(defender, flown, others)
        for result in again:
            result.summary["confirms"] = True
        return again

    first = challenger, opponent or evaluate(defender, scenes, config)
    previous = holder.version if holder is not None else None
    decision, flights = decide_and_confirm(contender.version, first, fly_again, previous_version=previous, alias=alias)
    if record is not None:
        record(decision, flights)
    if decision.promoted:
        try:
            write_model_card(contender, challenger, decision.reason)  # before: a champion has one after a kill, too
            registry.promote(contender.version, alias, instead_of=previous)
        except RegistryError as error:
            contender.path.with_suffix(".md").unlink(missing_ok=True)  # it says that the version was promoted
            if record is not None:
                record(replace(decision, promoted=False, reason=f"Refused, {error}"), flights)
            raise
    return decision, flights
