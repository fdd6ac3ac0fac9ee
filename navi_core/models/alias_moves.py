"""Moves of the registry's aliases go to the outbox, from where they reach the warehouse."""

from __future__ import annotations

from navi_core.models.registry import Registry
from navi_core.record import MetricLog, navi_home, outbox_path, row_context

__all__ = ["record_alias_moves"]


def record_alias_moves(registry: Registry) -> None:
    """Write every move of every alias to the table `alias_moves`; one written before is replaced by the same row.

    They are durable when this returns. The warehouse is that of `$NAVI_HOME`, so a registry in another place writes
    nothing.

    Args:
        registry: Whose moves.

    Raises:
        RecordError: The rows could not be written.
    """
    if registry.path.absolute() != (navi_home() / "models").absolute():
        return
    log = MetricLog(outbox_path(), "registry", row_context())
    for alias in registry.aliases():
        for move in registry.history(alias):
            row = {"alias": alias, "version": move["version"], "moved_at": move["at"], "action": move["action"]}
            log.row("alias_moves", row)
    log.flush()
