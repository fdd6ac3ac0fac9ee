"""Checks of message fields: values to be sent, and received values."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from navi_core.errors import WireError

Sizes = dict[str, int]
"""Lengths of the named axes of one message; the same name means the same length."""
Check = Callable[[object, str, Sizes], object]
"""Returns a value as the message holds it; takes the value, the field's name, and the named axes so far, which it adds
to. Raises `WireError` for a value of another kind."""

_MAX_TEXT = 1024
_MAX_WHOLE = 2**63
MOST = {"B": 4096, "Az": 4096, "El": 2048, "N": 65536}
"""Longest named axes."""


def whole(most: int = _MAX_WHOLE) -> Check:
    """Return the check of a whole number of 64 bits, of less than `most` in magnitude."""

    def check(value: object, name: str, _: Sizes) -> int:
        if type(value) is int and -most <= value < most:
            return value
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise WireError(f"{name} is {_describe(value)}, expected a whole number")
        if not -_MAX_WHOLE <= value < _MAX_WHOLE:
            raise WireError(f"{name} is {value}, beyond 64 bits")
        if not -most <= value < most:
            raise WireError(f"{name} is {value}, expected less than {most}")
        return int(value)

    return check


def number(most: float = 1e308) -> Check:
    """Return the check of a finite number of at most `most` in magnitude."""

    def check(value: object, name: str, _: Sizes) -> float:
        if type(value) is float and -most <= value <= most:
            return value
        if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
            raise WireError(f"{name} is {_describe(value)}, expected a finite number")
        if not -1e308 <= value <= 1e308:
            raise WireError(f"{name} is {_describe(value)}, expected a finite number")
        if not -most <= value <= most:
            raise WireError(f"{name} is {_describe(value)}, expected a number from {-most:g} to {most:g}")
        return float(value)

    return check


def boolean(value: object, name: str, _: Sizes) -> bool:
    """Check true or false."""
    if type(value) is bool:
        return value
    if not isinstance(value, np.bool_):
        raise WireError(f"{name} is {_describe(value)}, expected true or false")
    return bool(value)


def text(value: object, name: str, _: Sizes) -> str:
    """Check a short text."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise WireError(f"{name} is {_describe(value)}, expected text of at most {_MAX_TEXT} characters")
    return value


def size(value: object, name: str, sizes: Sizes) -> tuple[int, int]:
    """Check azimuth and elevation bins, a list of two; fixes both axes."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise WireError(f"{name} is {_describe(value)}, expected [azimuth bins, elevation bins]")
    azimuth, elevation = (int(_any_whole(part, name, sizes)) for part in value)  # type: ignore[call-overload]
    _same("Az", azimuth, name, sizes)
    _same("El", elevation, name, sizes)
    return azimuth, elevation


def array(dtype: str, *shape: int | str, absent: bool = False, most: float | None = None) -> Check:
    """Return the check of an array of one dtype.

    Args:
        dtype: Its name.
        shape: Axes: a length, or the name of one ("B", "Az", "El", "N").
        absent: Also accept an empty array (0, 0, …) for "not drawn".
        most: Largest magnitude; None also accepts non-finite numbers.
    """
    kind, axes = np.dtype(dtype), " × ".join(map(str, shape))

    def check(value: object, name: str, sizes: Sizes) -> npt.NDArray[np.generic]:
        if not isinstance(value, np.ndarray):
            raise WireError(f"{name} is {_describe(value)}, expected an array of {kind.name}")
        if value.dtype != kind or value.ndim != len(shape):
            raise WireError(f"{name} is {value.dtype.name} {value.shape}, expected {kind.name} ({axes})")
        if absent and value.size == 0:
            return value
        for axis, length in zip(shape, value.shape):
            if isinstance(axis, str):
                _same(axis, length, name, sizes)
            elif axis != length:
                raise WireError(f"{name} has shape {value.shape}, expected {axes}")
        # With NaN, minimum and maximum are NaN, and no comparison holds.
        if most is not None and value.size and not (value.min() >= -most and value.max() <= most):
            if not np.isfinite(value).all():
                raise WireError(f"{name} holds numbers that are not finite")
            raise WireError(f"{name} holds numbers beyond {most:g}")
        return value

    return check


_any_whole = whole()


def _same(axis: str, length: int, name: str, sizes: Sizes) -> None:
    if sizes.setdefault(axis, length) != length:
        raise WireError(f"{name}: axis {axis} is {length}, elsewhere in the message {sizes[axis]}")
    if not 0 <= length <= MOST[axis]:
        raise WireError(f"{name}: axis {axis} is {length}; allowed: 0 to {MOST[axis]}")


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} {value.shape}"
    if isinstance(value, Mapping | list | tuple | bytes):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)[:60]
