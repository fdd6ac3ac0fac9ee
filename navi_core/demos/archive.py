"""Safe reader of untrusted `.npz` archives: every size is checked before anything is unpacked or allocated.

An archive is a zip of `.npy` files. Nothing is unpickled. The size in the zip's directory must equal the size in the
array's own header, and both must be within the limit. Only deflate and stored members are read, as NumPy writes them:
deflate expands at most a thousandfold, other methods make gigabytes of a few kilobytes.

What would take most of the memory is refused; arrays of a dataset beyond the memory are memory-mapped.
"""

import logging
import math
import os
import shutil
import stat
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import DemoError
from navi_core.machine import whole_memory
from navi_core.record import navi_home

_MAX_MEMBERS = 64
_MAX_HEADER = 65_536
# zipfile's RuntimeError is an encrypted member, and by its subclass a version or a compression it does not know.
# numpy's header reader raises what Python's tokenizer and parser do.
_UNREADABLE = (
    OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, SyntaxError, tokenize.TokenError
)  # fmt: skip
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_PACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_END = struct.Struct("<4s4H2LH")
"""End record of a zip archive without a comment."""


@dataclass(frozen=True)
class ArrayHeader:
    """Header of one archived array: shape and dtype."""

    shape: tuple[int, ...]
    """Its shape."""
    dtype: np.dtype[Any]
    """Its type; never an object."""

    @property
    def nbytes(self) -> int:
        """Size of the array [B]."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """Read the headers (shape, dtype) of all arrays in an archive, without unpacking one.

    Raises:
        DemoError: No zip archive, a broken header, objects, or sizes that contradict each other.
    """
    with _opened(path) as archive:
        return {name: header for name, (header, _) in _members(path, archive).items()}


def read_arrays(path: Path, limits: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Load the arrays named in `limits` from an archive, where present.

    Args:
        path: The archive.
        limits: Name → largest size [B].

    Raises:
        DemoError: As `read_headers`; or an array is larger than allowed or damaged.
    """
    arrays = {}
    with _opened(path) as archive:
        members = _members(path, archive)
        for name, limit in limits.items():
            if name not in members:
                continue
            header, info = members[name]
            if header.nbytes > limit:
                raise DemoError(f"{header.nbytes:,} bytes, more than the {limit:,} allowed", path=path, field=name)
            try:
                with archive.open(info) as stream:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                    # The checksum is compared at the end of the stream alone, which the array does not reach.
                    stream.read(1)
            except _UNREADABLE as error:
                raise DemoError(f"damaged ({error})", path=path, field=name) from None
    return arrays


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        # A pipe would be waited for, and a device read until memory ends.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DemoError("no file, but a folder, a pipe or a device", path=path)
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise DemoError("no such file", path=path) from None
    except _UNREADABLE as error:
        raise DemoError(f"not an .npz archive, or cut short ({error})", path=path) from None


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, tuple[ArrayHeader, zipfile.ZipInfo]]:
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise DemoError(f"{len(infos)} arrays, more than the {_MAX_MEMBERS} allowed", path=path)
    announced = _announced(path)
    if announced is not None and announced != len(infos):
        raise DemoError(f"damaged: it announces {announced} arrays and lists {len(infos)}", path=path)
    found: dict[str, tuple[ArrayHeader, zipfile.ZipInfo]] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if name in found:
            raise DemoError("is there twice", path=path, field=name)
        if info.compress_type not in _PACKED:
            way = zipfile.compressor_names.get(info.compress_type, info.compress_type)  # type: ignore[attr-defined]
            raise DemoError(f"packed by {way}; allowed: deflate or not packed, as NumPy writes", path=path, field=name)
        try:
            with archive.open(info) as stream:
                header, length = _header(stream)
        except _UNREADABLE as error:
            raise DemoError(f"its header cannot be read ({error})", path=path, field=name) from None
        if header.dtype.hasobject:
            raise DemoError("holds Python objects, which are never unpickled", path=path, field=name)
        if length + header.nbytes != info.file_size:
            raise DemoError(
                f"its header announces {header.nbytes:,} bytes, the archive {info.file_size - length:,}",
                path=path,
                field=name,
            )
        found[name] = (header, info)
    return found


def _announced(path: Path) -> int | None:
    """Return the member count in the zip's end record; None where the record is not at the very end.

    `zipfile` does not compare: a flipped bit in one entry can hide the entries behind it.
    """
    with path.open("rb") as file:
        file.seek(-_END.size, 2)
        signature, _, _, _, count, _, _, comment = _END.unpack(file.read(_END.size))
    return count if signature == b"PK\x05\x06" and comment == 0 else None


def _header(stream: IO[bytes]) -> tuple[ArrayHeader, int]:
    version = np.lib.format.read_magic(stream)
    if version not in _HEADER_READERS:
        raise ValueError(f"unknown .npy version {version}")
    shape, _, dtype = _HEADER_READERS[version](stream, max_header_size=_MAX_HEADER)
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape {shape}")
    return ArrayHeader(tuple(int(extent) for extent in shape), dtype), stream.tell()


Allocate = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]
"""Makes an array of a shape and a type; nothing is in it yet."""
_LOG = logging.getLogger("navi.demos")

_SHARE = 0.7
"""Share of the memory that demonstrations may take."""


def require_memory(need: int, path: Path, remedy: str) -> None:
    """Refuse an allocation that would take most of the memory.

    Args:
        need: Size of the array [B].
        path: Its file or folder, for the message.
        remedy: What to do instead, for the message.

    Raises:
        DemoError: It needs more than 70 % of the memory of this process.
    """
    have = whole_memory()
    if have is not None and need > _SHARE * have:
        raise DemoError(
            f"needs {need / 2**30:.1f} GiB of memory, this machine has {have / 2**30:.1f}; {remedy}", path=path
        )


def array_allocator(need: int, folder: Path, remedy: str) -> Allocate:
    """Return an array allocator: in memory, or memory-mapped on disk where memory is too small.

    The mapped files lie in the Navi home without a name, so they vanish with the process, however it ends.

    Args:
        need: Size of all arrays [B].
        folder: The dataset, for messages.
        remedy: What to do where the disk is too small as well, for the message.

    Raises:
        DemoError: Neither memory nor disk has the room.
    """
    have = whole_memory()
    if have is None or need <= _SHARE * have:
        return np.empty
    home = navi_home()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    sizes = f"{need / 2**30:.1f} GiB, of which memory holds {_SHARE * have / 2**30:.1f}"
    if need > _SHARE * free:
        raise DemoError(f"needs {sizes} and the disk of {home} {_SHARE * free / 2**30:.1f}; {remedy}", path=folder)
    _LOG.warning("%s: %s; the decisions are put into a file in %s and read from there", folder, sizes, home)

    def mapped(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            with tempfile.TemporaryFile(dir=home) as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):
                    # Disk space is reserved now: a disk that fills up later would kill the process without a message.
                    os.posix_fallocate(file.fileno(), 0, size)
                return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
        except OSError as error:
            raise DemoError(f"no room for {sizes}: {error.strerror or error}; {remedy}", path=folder) from error

    return mapped
