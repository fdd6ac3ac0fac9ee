"""Promotion: the champion changes only when the challenger is shown to be better, and no more dangerous.

Challenger and champion fly the same frozen starts of validation scenes. The first champion, who has nobody to beat,
must beat the random pilot. Who wins there flies once more, from starts that nobody was chosen by: of many challengers
on the same starts some win by chance. Whatever is decided becomes one row of the table `promotions`, refusals included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from navi_core.errors import CheckpointError, EvaluationError, RegistryError
from navi_core.evaluate.comparison.statistics import bootstrap_interval
from navi_core.evaluate.comparison.subjects import Comparison, compare, paired_differences
from navi_core.evaluate.flight.course import Course
from navi_core.evaluate.protocol import evaluate
from navi_core.evaluate.result import EvalResult
from navi_core.models import load_checkpoint, trained_on

if TYPE_CHECKING:
    from navi_core.config import EvalConfig
    from navi_core.models import ModelVersion, Registry
    from navi_core.scenes import Scene

__all__ = [
    "COLLISION_TOLERANCE",
    "Decision",
    "confirmed",
    "confirming",
    "decide",
    "decide_and_confirm",
    "promote",
    "scenes_seen",
]

COLLISION_TOLERANCE = 1.0
"""Mean rise of collisions per minute that is taken for chance while its interval includes 0."""

METRIC = "c_vis_auc"
"""What the challenger must be better in."""

SAFETY = "collisions_per_minute"
"""What it must not be worse in."""

_FEWEST_SCENES = 2
_LISTED = 5
"""Scenes that a refusal names."""
_SEEN = (
    "{version}, or a version that it descends from, was trained on {seen} of these scenes; promote on scenes that it "
    "never saw"
)
_CONFIRMING = 1_000_000
"""Where the seeds of confirming flights begin: nobody chooses a version by flights of these."""


@dataclass(frozen=True)
class Decision:
    """Whether a version becomes the champion, and why."""

    version: str
    """The challenger."""
    alias: str
    """The alias it asked for."""
    promoted: bool
    """Whether it got it."""
    reason: str
    """The verdict in words."""
    previous_version: str | None
    """Who held the alias before; None for a first champion."""
    opponent: str
    """Who it was compared with: the champion, or the random pilot."""
    coverage: Comparison
    """Challenger against opponent in coverage."""
    collisions: Comparison
    """Challenger against opponent in collisions per minute."""
    evaluation_id: str
    """The challenger's evaluation."""
    decided_at: str
    """When, ISO 8601 in UTC."""

    def to_row(self) -> dict[str, Any]:
        """Return the row for the table `promotions`; differences are shares of 1, as everywhere in the warehouse."""
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
            "low": _known(self.coverage.low / 100.0),
            "high": _known(self.coverage.high / 100.0),
            "collisions_difference": self.collisions.mean_difference,
            "collisions_low": _known(self.collisions.low),
            "collisions_high": _known(self.collisions.high),
        }


def _known(bound: float) -> float | None:
    """Return a bound, None where one pair has none."""
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
    """Decide a promotion from two evaluations on the same starts, of scenes that the challenger was not trained on.

    Better: the paired interval of `c_vis_auc` over scenes and starts lies above 0. Not worse in collisions: the
    paired interval of the collisions per minute does not lie above 0, and their mean rises by no more than
    `tolerance`.

    Args:
        version: The challenger's version.
        challenger: Its evaluation.
        opponent: The champion's evaluation, or the random pilot's where there is no champion.
        previous_version: The champion's version; None where there is none.
        alias: The alias asked for.
        tolerance: Rise of collisions per minute taken for chance.
        seen: Scenes that it is known to have been trained on besides what its evaluation says, see `scenes_seen`.

    Raises:
        EvaluationError: The two did not fly the same starts, or no champion is given and the opponent is not random.
    """
    if previous_version is None and opponent.summary.get("subject") != "random":
        raise EvaluationError("a first champion is judged against the pilot 'random'; evaluate that on the same scenes")
    coverage = compare(challenger, opponent, METRIC)
    collisions = compare(challenger, opponent, SAFETY)
    # A wide interval must not let more through, nor a champion that knew the scenes: the bounds themselves are asked,
    # of few scenes the bootstrap's, which is the narrower one.
    likely = bootstrap_interval(paired_differences(challenger, opponent, SAFETY)).low
    rises = max(likely, collisions.low) > 0 or collisions.mean_difference > tolerance
    seen = max(seen, int(challenger.summary.get("scenes_trained_on") or 0))
    alone = coverage.scenes < _FEWEST_SCENES
    if seen:
        reason = f"Refused, {version} was trained on {seen} of these scenes"
    elif alone:
        reason = f"Refused, {coverage.scenes} scene says nothing of others; let it fly in {_FEWEST_SCENES} or more"
    elif not coverage.better:
        reason = f"Refused, not shown to be better: {coverage.sentence}"
    elif rises:
        reason = f"Refused, it collides more: {collisions.sentence}"
    else:
        reason = f"Promoted: {coverage.sentence} Collisions: {collisions.sentence} {_clean_flights(challenger)}"
    return Decision(
        version=version,
        alias=alias,
        promoted=coverage.better and not rises and not seen and not alone,
        reason=reason,
        previous_version=previous_version,
        opponent=opponent.subject,
        coverage=coverage,
        collisions=collisions,
        evaluation_id=challenger.evaluation_id,
        decided_at=datetime.now(UTC).isoformat(timespec="microseconds"),
    )


def _clean_flights(flown: EvalResult) -> str:
    """Return a sentence on the flights that hit something: a mean of rare events says little about the next one."""
    flights, hit = len(flown.episodes), sum(not row["collision_free"] for row in flown.episodes)
    if hit:
        return f"{hit} of its {flights} flights hit something."
    return f"None of its {flights} flights hit anything; up to {100 * (1 - 0.05 ** (1 / flights)):.0f} % might (95 %)."


def confirming(config: EvalConfig, version: str) -> EvalConfig:
    """Return the protocol of the flight that has to confirm a win: other starts of the same scenes, each version's own.

    Args:
        config: The protocol of the first flight.
        version: The challenger, "v003".
    """
    seed = config.seed + _CONFIRMING + int(version.removeprefix("v"))
    return config.model_copy(update={"seed": seed % 2**31})


def confirmed(first: Decision, again: Decision) -> Decision:
    """Return what is decided of a challenger that won its first flight: what the second one says, told with both.

    The lead that is told is the second's; the first one's was chosen for being large.
    """
    before = f"{first.coverage.mean_difference:+.2f} on the first ones"
    if again.promoted:
        return replace(again, reason=f"{again.reason} These are other starts than it won on before ({before}).")
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
    """Decide a promotion (`decide`), and of a challenger that wins once more, from other starts.

    Args:
        version: The challenger's version.
        first: Evaluations of challenger and opponent.
        fly_again: Returns both by another protocol; called of a challenger that wins.
        previous_version: The champion's version; None where there is none.
        alias: The alias asked for.
        seen: Scenes that it is known to have been trained on, see `scenes_seen`.

    Returns:
        The decision, and the pairs of evaluations that it rests on.

    Raises:
        EvaluationError: As `decide`.
    """
    decision = decide(version, *first, previous_version=previous_version, alias=alias, seen=seen)
    if not decision.promoted:
        return decision, [first]
    again = fly_again(confirming(first[0].config, version))
    second = decide(version, *again, previous_version=previous_version, alias=alias, seen=seen)
    return confirmed(decision, second), [first, again]


def scenes_seen(registry: Registry, version: str, flown: EvalResult) -> int:
    """Return how many scenes of an evaluation a version was trained on, or one that it descends from.

    A checkpoint knows those of the weights that it began with since 2026-11-22; older ones know their own alone.
    """
    known = _learned(registry.lineage(version)[1:])
    before = {str(row["scene"]) for row in flown.episodes if row["scene_hash"] in known}
    return max(int(flown.summary.get("scenes_trained_on") or 0), len(before))


def _learned(entries: Iterable[ModelVersion]) -> set[str]:
    """Return the content and source hashes of the scenes that versions were trained on."""
    known: set[str] = set()
    for entry in entries:
        try:
            known |= trained_on(load_checkpoint(entry.path))
        except CheckpointError:
            continue  # an ancestor whose file is gone, or that this Navi cannot read
    return known


def _require_unseen(version: str, registry: Registry, scenes: Sequence[Scene]) -> None:
    """Refuse scenes on which no flight, of an hour perhaps, could win."""
    known = _learned(registry.lineage(version))
    seen = [scene.name for scene in scenes if scene.content_hash() in known or scene.source_hash in known]
    if seen:
        told = f"{len(seen)} ({', '.join(seen[:_LISTED])}{', …' if len(seen) > _LISTED else ''})"
        raise EvaluationError(_SEEN.format(version=version, seen=told))
    if len(scenes) < _FEWEST_SCENES:
        raise EvaluationError(
            f"a promotion needs {_FEWEST_SCENES} scenes or more, {len(scenes)} says nothing of others; name more with "
            "--scene"
        )


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
    """Let a version challenge the holder of an alias, and move the alias if it wins and wins again on other starts.

    Args:
        version: The challenger, "v003" or an alias such as "latest".
        registry: The model registry.
        scenes: Validation scenes, or a course made of them.
        config: The protocol; a course has its own.
        alias: The alias at stake.
        challenger: Its evaluation on these scenes, if it has been flown already.
        opponent: The evaluation of the alias's holder, or of the random pilot, if it has been flown already.
        record: Given what is returned before the alias moves, since a version that holds it cannot be decided again;
            and once more, refused, where another version got the alias meanwhile.

    Returns:
        The decision, and the evaluations of challenger and opponent: of the first flight and, if it was won, of the
        one that had to confirm it.

    Raises:
        RegistryError: No such version, not a valid alias, or another version got the alias during the flights.
        EvaluationError: The challenger holds the alias already, was trained on one of the scenes, there is but one
            scene, or the two cannot be compared.
    """
    contender = registry.resolve(version)
    registry.check_alias(alias)
    holder = next((entry for entry in registry.list() if alias in entry.aliases), None)
    if holder is not None and holder.version == contender.version:
        raise EvaluationError(f"{contender.version} is the {alias} already")
    rival = holder if holder is not None else "random"
    places = scenes.field.scenes if isinstance(scenes, Course) else scenes
    if challenger is None:
        _require_unseen(contender.version, registry, places)
        challenger = evaluate(contender, scenes, config)
    elif seen := scenes_seen(registry, contender.version, challenger):
        raise EvaluationError(_SEEN.format(version=contender.version, seen=seen))

    def fly_again(others: EvalConfig) -> tuple[EvalResult, EvalResult]:
        again = evaluate(contender, places, others), evaluate(rival, places, others)
        for result in again:
            result.summary["confirms"] = True
        return again

    first = challenger, opponent or evaluate(rival, scenes, config)
    previous = holder.version if holder is not None else None
    decision, flights = decide_and_confirm(contender.version, first, fly_again, previous_version=previous, alias=alias)
    if record is not None:
        record(decision, flights)
    if decision.promoted:
        try:
            registry.promote(contender.version, alias, instead_of=previous)
        except RegistryError as error:
            if record is not None:
                record(replace(decision, promoted=False, reason=f"Refused, {error}"), flights)
            raise
    return decision, flights
