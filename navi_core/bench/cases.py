"""What the benchmarks' lists have in common: cases that share a peer, and rows as plain values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

__all__ = ["Row", "grouped"]

Case = TypeVar("Case")


class Row:
    """What was measured for one case; its subclasses are dataclasses."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


def grouped(cases: Iterable[Case], key: Callable[[Case], Hashable]) -> list[list[Case]]:
    """Return the cases that take turns with one another, in the order of their first ones."""
    groups: dict[Hashable, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return list(groups.values())
