"""Exception classes of Navi; each message names the offender, the allowed values and the next command.

NaviError
├── ConfigError            an unknown key, an impossible value, settings that contradict each other
├── SceneError             a mesh or scene that cannot be used
│   ├── MeshError          a mesh file that cannot be read or holds no usable surface
│   ├── SceneTooLargeError compiling takes more memory than there is
│   └── GmdagError         a `.gmdag` file that is broken; carries the byte offset
├── CheckpointError        a checkpoint that is missing, too old, or of another encoder or core
├── RegistryError          an unknown version or alias, or a refused change of one
├── RunError               a run directory that is locked, broken, or belongs to another config
│   └── UnavailableError   a GPU, a cluster or disk space that is not there; no outcome of what asked for it
├── RecordError            rows that could not be written or read back
├── NonFiniteError         NaN or Inf in training; carries the tensor's name
├── EvaluationError        an evaluation that cannot be made as asked
├── DemoError              demonstrations that break their format; carries the file and the field
├── WireError              frames that break the wire's format; carries a code for the peer
└── ServiceError           a server that cannot start or reach its peer: a port taken, a bad endpoint
"""

import difflib
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

DISTRIBUTION = "navi-drone"
"""Name under which pip installs Navi; `navi` is another project's."""
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories that steer a terminal or hide: controls, formats (bidirectional ones too), half surrogates."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra: from the checkout, if this is one, else from the package index."""
    is_checkout = (Path(__file__).parents[1] / "pyproject.toml").is_file()
    return f"pip install -e '.[{extra}]'" if is_checkout else f"pip install '{DISTRIBUTION}[{extra}]'"


def printable(text: str, keep: str = "") -> str:
    """Sanitise text for printing: replace every control or invisible character by "?".

    Names inside meshes and files are other people's: an escape sequence in one must not reach a terminal.

    Args:
        text: Any text.
        keep: Characters let through, a line break for instance.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _INVISIBLE else "?" for c in text)


def as_argument(path: Path | str) -> str:
    """Quote a path for the shell, for the command that a message suggests."""
    return shlex.quote(os.fspath(path))


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return "did you mean 'NAME'? " of the name most like a mistyped word; empty where none is like it."""
    near = difflib.get_close_matches(word, list(names), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


_UNITS = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def whole_number(text: str) -> int | None:
    """Parse a whole number as people write large ones: 1e5, 100k, 2.5M; None for other texts, plain digits included."""
    found = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)(?:e\+?(\d{1,2})|([kMG]))", text.strip())
    if found is None:
        return None
    digits, exponent, unit = found.groups()
    whole, _, part = digits.partition(".")
    power = len(str(_UNITS[unit])) - 1 if unit else int(exponent)
    return int(whole + part.ljust(power, "0")) if len(part) <= power else None


class NaviError(Exception):
    """Base class of all expected Navi errors; the CLI prints them without a traceback."""

    exit_code = 1

    @classmethod
    @contextmanager
    def of_system(cls, what: str, **details: Path) -> Iterator[None]:
        """Context manager that converts an `OSError` of the block into this error class.

        Args:
            what: What failed; the system's reason follows.
            details: Further arguments of this error.
        """
        try:
            yield
        except OSError as error:
            raise cls(f"{what}: {error.strerror or error}", **details) from error


class ConfigError(NaviError, ValueError):
    """Invalid configuration: an unknown key, an impossible value, or two contradicting settings."""

    exit_code = 2


class SceneError(NaviError):
    """Failure to discover, compile, load or use a scene."""

    exit_code = 3


class MeshError(SceneError):
    """Invalid mesh file: missing, unreadable, empty, or without a finite surface."""


class SceneTooLargeError(SceneError):
    """Insufficient memory to compile a scene; elsewhere, or later, it may fit."""


class GmdagError(SceneError):
    """Invalid `.gmdag` file: it violates the format.

    Attributes:
        reason: What is wrong.
        path: The file, if it came from one.
        offset: Byte offset of the first offending field.
    """

    def __init__(self, reason: str, *, path: Path | str | None = None, offset: int | None = None) -> None:
        self.reason, self.offset = reason, offset
        self.path = Path(path) if path is not None else None
        where = f"{path}: " if path is not None else ""
        at = f" (at byte {offset})" if offset is not None else ""
        super().__init__(f"{where}{reason}{at}")


class CheckpointError(NaviError):
    """Invalid checkpoint: missing, truncated, of an old version, or of another encoder or temporal core."""

    exit_code = 4


class CheckpointVersionError(CheckpointError):
    """Unsupported checkpoint version: the file is intact, but needs another version of Navi."""


class RegistryError(NaviError):
    """Model registry error: an unknown version or alias, or a refused change."""

    exit_code = 4


class RunError(NaviError):
    """Run directory error: locked by another process, broken, or made by another configuration."""

    exit_code = 5


class UnavailableError(ConfigError, RunError):
    """Fault of the infrastructure: a GPU, a cluster or disk space is missing; no trial or cell has an outcome by it."""

    exit_code = os.EX_UNAVAILABLE


class RecordError(NaviError):
    """Failure to write metric rows durably, or to read a segment of them back."""

    exit_code = 6


class NonFiniteError(NaviError):
    """Non-finite value (NaN or Inf) in training.

    Attributes:
        tensor: Name of the first tensor that held one.
    """

    exit_code = 7

    def __init__(self, tensor: str, message: str) -> None:
        self.tensor = tensor
        super().__init__(message)


class EvaluationError(NaviError):
    """Invalid request of an evaluation or comparison."""

    exit_code = 8


class DemoError(NaviError):
    """Invalid demonstration file, or demonstrations that are incompatible with each other.

    Attributes:
        path: The file or folder.
        field: The first offending field, None where the file as a whole is meant.
    """

    exit_code = 9

    def __init__(self, reason: str, *, path: Path | str, field: str | None = None) -> None:
        self.path = Path(path)
        self.field = field
        super().__init__(f"{path}: {field + ': ' if field else ''}{reason}")


class WireError(NaviError, ValueError):
    """Wire protocol error: malformed frames from a peer, or a message that cannot be sent.

    Attributes:
        code: Error code of the answer: `malformed` or `version`.
    """

    exit_code = 10

    def __init__(self, reason: str, *, code: str = "malformed") -> None:
        self.code = code
        super().__init__(reason)


class ServiceError(NaviError):
    """Service error: a server cannot start, or its peer is unreachable."""

    exit_code = 11
