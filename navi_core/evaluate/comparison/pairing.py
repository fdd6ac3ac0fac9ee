"""Pairing of evaluations: same starts, same rules."""

from collections.abc import Callable, Sequence

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate.result import EvalResult

_POSE = ("start_x", "start_y", "start_z", "start_yaw")
_GOAL = ("goal_x", "goal_y", "goal_z")
_RULES = ("task", "dynamics", "clearance_margin", "visit_cell")
"""Protocol settings that must be equal in a pair; further ones are columns of the episodes."""

_NAMED: dict[str, Callable[[EvalConfig], str]] = {
    "sensor": lambda config: "sensor clean" if config.sensor == type(config.sensor)() else "sensor noisy",
    "deterministic": lambda config: "mean actions" if config.deterministic else "sampled actions",
    "recovery": lambda config: {None: "recovery as trained", True: "recovery", False: "no recovery"}[config.recovery],
}
"""Settings that may differ in a pair, with their values in words."""


def require_pairs(a: EvalResult, b: EvalResult) -> None:
    """Refuse results whose episodes are not pairs: same scenes, same starts, same length, same physics.

    Raises:
        EvaluationError: Scenes, starts or protocols differ.
    """
    starts = [{(row["scene"], row["start"]): row for row in result.episodes} for result in (a, b)]
    if starts[0].keys() != starts[1].keys():
        odd = sorted(starts[0].keys() ^ starts[1].keys())[0]
        raise EvaluationError(
            f"{a.subject} and {b.subject} flew different starts (scene {odd[0]}, start {odd[1]} is in one of them "
            "alone); evaluate both on the same scenes with the same configuration"
        )
    for key, row in starts[0].items():
        other = starts[1][key]
        for name in ("scene_hash", *_POSE, *_GOAL, "max_steps", "decision_hz", "view_radius", "floor_cell"):
            # Older files have no goals.
            if row.get(name) != other.get(name):
                raise EvaluationError(
                    f"{a.subject} and {b.subject} flew different starts: {name} of scene {key[0]}, start {key[1]} "
                    f"is {row.get(name)} and {other.get(name)}; evaluate both with the same configuration"
                )
    for name in (*_RULES, *(("goal",) if a.config.task == "point_goal" else ())):
        mine, theirs = getattr(a.config, name), getattr(b.config, name)
        if mine != theirs:
            raise EvaluationError(
                f"{a.subject} and {b.subject} flew by different rules: {name} is {mine} and {theirs}; evaluate both "
                "with the same configuration"
            )


def protocol_differences(a: EvalResult, b: EvalResult) -> list[str]:
    """Return the permitted protocol differences of two paired results, in words.

    Such a pair may be intended (a noisy sensor against a clean one), but a verdict must mention it.
    """
    differences = []
    for name, words in _NAMED.items():
        if getattr(a.config, name) != getattr(b.config, name):
            mine, theirs = words(a.config), words(b.config)
            differences.append(f"{mine} against {theirs}" if mine != theirs else f"another {name}")
    return differences


def mixed_code(results: Sequence[EvalResult]) -> str:
    """Return a sentence where results were flown by different code versions; else an empty text.

    Old results hold no version: they differ from newer ones, and nothing is known of two old ones.
    """
    codes = {result.summary.get("flight_code") for result in results}
    return "Flown by different versions of Navi's code." if len(codes) > 1 else ""
