"""Checks that recordings match a run's sensor, rate and limits."""

import math
from collections.abc import Iterable
from typing import Any

from navi_core.errors import ConfigError

_TOLERANCE = 1e-6
"""Relative; files may round their numbers."""


def require_alike(facts: Iterable[tuple[str, Any, Any]], whose: str, advice: str) -> None:
    """Check that recordings have the settings of a run.

    Args:
        facts: Name of a setting, the run's value, that of the recordings; numbers may differ by rounding.
        whose: Name of the recordings.
        advice: Remedy, for the message.

    Raises:
        ConfigError: A value differs; both are named.
    """
    for name, here, there in facts:
        if not _alike(here, there):
            raise ConfigError(f"{name} is {here}, that of the {whose} {there}; {advice}")


def _alike(here: object, there: object) -> bool:
    if isinstance(here, list | tuple) and isinstance(there, list | tuple):
        return len(here) == len(there) and all(map(_alike, here, there))
    if isinstance(here, float) and isinstance(there, int | float):
        try:
            return math.isclose(here, there, rel_tol=_TOLERANCE)
        except OverflowError:  # a file may hold an integer beyond all floats
            return False
    return bool(here == there)
