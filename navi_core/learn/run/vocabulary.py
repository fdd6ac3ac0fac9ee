"""Semantic ids belong to a corpus: weights that learned one numbering read another one wrongly."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["changed_ids", "tell_changed_ids"]


def changed_ids(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return the names that both know under different ids, sorted.

    Args:
        before: Ids by name that the weights were trained with.
        now: Ids by name of the scenes to be flown.
    """
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def tell_changed_ids(before: Mapping[str, int], now: Mapping[str, int], weights: str) -> str | None:
    """Return what to say when weights meet another numbering; None where every shared name kept its id.

    Names that only one of them knows are no fault: a policy may meet new things.

    Args:
        before: Ids by name that the weights were trained with; empty where they are unknown.
        now: Ids by name of the scenes to be flown.
        weights: What the weights are called.
    """
    changed = changed_ids(before, now)
    if not changed:
        return None
    first = changed[0]
    return (
        f"{weights} learned other semantic ids than this corpus has: {len(changed)} of {len(now)} names differ, first "
        f"{first!r} ({before[first]} there, {now[first]} here); what it knows about surfaces no longer holds. Begin "
        "with new weights (--init none), or train on scenes with the same names"
    )
