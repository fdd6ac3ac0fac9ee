"""Warnings of a run: changed semantic ids, and episodes that leave the scene at no cost."""

from collections.abc import Mapping

from navi_core.config import EnvConfig

_MANY_VOID = 0.1
"""Fraction of void episodes above which the warning is given."""


def changed_ids(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return the names that both know under different ids, sorted.

    Args:
        before: Ids by name that the weights were trained with.
        now: Ids by name of the scenes to be flown.
    """
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def changed_ids_warning(before: Mapping[str, int], now: Mapping[str, int], weights: str) -> str | None:
    """Return the warning for weights of a corpus with other semantic ids; None where every shared name kept its id.

    Names that only one corpus has are no fault: a policy may meet new things.

    Args:
        before: Ids by name that the weights were trained with; empty where they are unknown.
        now: Ids by name of the scenes to be flown.
        weights: Name of the weights.
    """
    changed = changed_ids(before, now)
    if not changed:
        return None
    first = changed[0]
    return (
        f"{weights} learned other semantic ids than this corpus has: {len(changed)} of {len(now)} names differ, first "
        f"{first!r} ({before[first]} there, {now[first]} here). Its knowledge of surfaces no longer holds. Begin "
        "with new weights (--init none), or train on scenes with the same names"
    )


def void_warning(metrics: Mapping[str, float], env: EnvConfig) -> str | None:
    """Return the warning for episodes that leave the scene and are truncated there; None below 10 %.

    Args:
        metrics: Of an update.
        env: Settings of the environment.
    """
    # `void_rate` is a fraction of the decisions.
    share = metrics.get("void_rate", 0.0) * metrics.get("episode_length", 0.0)
    if share <= _MANY_VOID or env.void_ends != "truncated":
        return None
    return (
        f"{100 * min(share, 1.0):.0f} % of episodes left the scene. Truncation bootstraps V(s'), so leaving is not "
        "penalised; set env.void_ends=terminated."
    )
