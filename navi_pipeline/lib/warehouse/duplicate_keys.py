"""Whether rows of a table share their natural key, counted in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from navi_core.record.schema import NATURAL_KEYS

if TYPE_CHECKING:
    import pandas

__all__ = ["count_doubles"]

_PIECE = 2_000_000
"""Rows of a piece: a set of keys takes about a hundred bytes of each."""


def count_doubles(
    ask: Callable[[str, list[Any] | None], pandas.DataFrame], table: str, *, piece_rows: int = _PIECE
) -> int:
    """Return how many rows of a table have the natural key of another.

    Args:
        ask: Answers SQL, of `Warehouse.reader`.
        table: The table.
        piece_rows: About how many keys are held at a time.

    Raises:
        RecordError: There is no such table.
    """
    keys = NATURAL_KEYS[table]
    together = ", ".join(keys)
    pieces = 1 + int(ask(f"select count(*) as n from {table}", None)["n"][0]) // piece_rows
    # By the number in the key, whose hash costs a tenth of that of texts: a long run is divided, too, and equal keys
    # meet in one piece. Grouped rather than counted as distinct, which would pass over keys without a run.
    sql = (
        f"select coalesce(sum(n - 1), 0) as n from "
        f"(select count(*) as n from {table} where hash({keys[1]}) % ? = ? group by {together} having count(*) > 1)"
    )
    return sum(int(ask(sql, [pieces, piece])["n"][0]) for piece in range(pieces))
