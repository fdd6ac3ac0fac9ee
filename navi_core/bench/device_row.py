"""A line of the table of a device."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceRow"]


@dataclass(frozen=True)
class DeviceRow:
    """One line of the table.

    Attributes:
        what: What was measured.
        value: The figure.
        unit: Its unit.
        passed: Whether it meets its bound; None where there is none.
    """

    what: str
    value: float | str
    unit: str = ""
    passed: bool | None = None
