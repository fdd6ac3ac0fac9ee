"""Kinds of message fields: how a value is checked on its way out and on its way in."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from navi_core.errors import WireError

__all__ = ["Array", "Flag", "Kind", "Number", "Size", "Sizes", "Text", "Whole"]

Sizes = dict[str, int]
"""Lengths of the named axes of one message; the same name means the same length."""
_MOST_TEXT = 1024
_MOST_WHOLE = 2**63
MOST = {"B": 4096, "Az": 4096, "El": 2048, "N": 65536}
"""Longest named axes."""


class Kind(abc.ABC):
    """A kind of value."""

    @abc.abstractmethod
    def check(self, value: Any, name: str, sizes: Sizes) -> Any:
        """Return the value as the message holds it.

        Args:
            value: What was given or received.
            name: Of the field, for errors.
            sizes: Named axes so far; added to.

        Raises:
            WireError: It is another kind of value.
        """


class Whole(Kind):
    """A whole number of 64 bits.

    Args:
        most: Largest magnitude that is taken.
    """

    def __init__(self, most: int = _MOST_WHOLE) -> None:
        self.most = most

    def check(self, value: Any, name: str, sizes: Sizes) -> int:
        """Return an int."""
        if type(value) is int and -self.most <= value < self.most:
            return value
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise WireError(f"{name} is {_told(value)}, expected a whole number")
        if not -_MOST_WHOLE <= value < _MOST_WHOLE:
            raise WireError(f"{name} is {value}, beyond 64 bits")
        if not -self.most <= value < self.most:
            raise WireError(f"{name} is {value}, expected less than {self.most}")
        return int(value)


class Number(Kind):
    """A finite number.

    Args:
        most: Largest magnitude that is taken; by default any that is finite.
    """

    def __init__(self, most: float = 1e308) -> None:
        self.most = most

    def check(self, value: Any, name: str, sizes: Sizes) -> float:
        """Return a float."""
        if type(value) is float and -self.most <= value <= self.most:
            return value
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not number or not -1e308 <= value <= 1e308:
            raise WireError(f"{name} is {_told(value)}, expected a finite number")
        if not -self.most <= value <= self.most:
            raise WireError(f"{name} is {_told(value)}, expected a number from {-self.most:g} to {self.most:g}")
        return float(value)


class Flag(Kind):
    """True or false."""

    def check(self, value: Any, name: str, sizes: Sizes) -> bool:
        """Return a bool."""
        if type(value) is bool:
            return value
        if not isinstance(value, np.bool_):
            raise WireError(f"{name} is {_told(value)}, expected true or false")
        return bool(value)


class Text(Kind):
    """A short text."""

    def check(self, value: Any, name: str, sizes: Sizes) -> str:
        """Return a str."""
        if not isinstance(value, str) or len(value) > _MOST_TEXT:
            raise WireError(f"{name} is {_told(value)}, expected text of at most {_MOST_TEXT} characters")
        return value


class Size(Kind):
    """Azimuth and elevation bins, a list of two."""

    def check(self, value: Any, name: str, sizes: Sizes) -> tuple[int, int]:
        """Return (Az, El) and fix both axes."""
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise WireError(f"{name} is {_told(value)}, expected [azimuth bins, elevation bins]")
        bins = [Whole().check(part, name, sizes) for part in value]
        for axis, length in zip(("Az", "El"), bins):
            _same(axis, length, name, sizes)
        return bins[0], bins[1]


class Array(Kind):
    """An array of one dtype.

    Args:
        dtype: Name of it.
        shape: Axes: a length, or the name of one ("B", "Az", "El", "N").
        absent: Also take an empty array (0, 0, …) for "not drawn".
        most: Largest magnitude that is taken; None takes any number, and what is none.
    """

    def __init__(self, dtype: str, *shape: int | str, absent: bool = False, most: float | None = None) -> None:
        self.dtype, self.shape, self.absent, self.most = np.dtype(dtype), shape, absent, most

    def check(self, value: Any, name: str, sizes: Sizes) -> np.ndarray:
        """Return the array."""
        if not isinstance(value, np.ndarray):
            raise WireError(f"{name} is {_told(value)}, expected an array of {self.dtype.name}")
        if value.dtype != self.dtype or value.ndim != len(self.shape):
            expected = " × ".join(map(str, self.shape))
            raise WireError(f"{name} is {value.dtype.name} {value.shape}, expected {self.dtype.name} ({expected})")
        if self.absent and value.size == 0:
            return value
        for axis, length in zip(self.shape, value.shape):
            if isinstance(axis, str):
                _same(axis, length, name, sizes)
            elif axis != length:
                raise WireError(f"{name} has shape {value.shape}, expected {' × '.join(map(str, self.shape))}")
        # Of numbers among which is none, neither least nor largest is a number, and no comparison holds.
        if self.most is not None and value.size and not (value.min() >= -self.most and value.max() <= self.most):
            if not np.isfinite(value).all():
                raise WireError(f"{name} holds numbers that are not finite")
            raise WireError(f"{name} holds numbers beyond {self.most:g}")
        return value


def _same(axis: str, length: int, name: str, sizes: Sizes) -> None:
    if sizes.setdefault(axis, length) != length:
        raise WireError(f"{name}: axis {axis} is {length}, elsewhere in the message {sizes[axis]}")
    if not 0 <= length <= MOST[axis]:
        raise WireError(f"{name}: axis {axis} is {length}; allowed: 0 to {MOST[axis]}")


def _told(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} {value.shape}"
    if isinstance(value, Mapping | list | tuple | bytes):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)[:60]
