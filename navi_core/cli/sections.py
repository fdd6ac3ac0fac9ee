"""`--set` of commands that let only some sections be set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from navi_core.errors import ConfigError

__all__ = ["parse_sections"]


def parse_sections(assign: Iterable[str] | None, allowed: Sequence[str], example: str) -> dict[str, Any]:
    """Turn the texts of `--set` into nested settings of some sections.

    Args:
        assign: Texts `a.b=c`; None where none was given.
        allowed: Names of the sections.
        example: What the error shows as right.

    Raises:
        ConfigError: A text is of another section, which is named, or of another form.
    """
    from navi_core.presets import parse_assignments

    given = parse_assignments(assign or ())
    unknown = sorted(given.keys() - set(allowed))
    if unknown:
        known = " and ".join(f"{name}.…" for name in allowed)
        raise ConfigError(f"--set {', '.join(unknown)}; only {known} can be set here: {example}")
    return given
