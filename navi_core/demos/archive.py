"""Safe reader of untrusted `.npz` archives: every size is checked before a byte is unpacked.

An archive is a zip of `.npy` files. Nothing is unpickled. The size in the zip's directory must equal the size in the
array's own header, and both must be within the limit. Only deflate and stored members are read, as NumPy writes them:
deflate expands at most a thousandfold, other methods make gigabytes of a few kilobytes.
"""

import math
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import DemoError

_MAX_MEMBERS = 64
_MAX_HEADER = 65_536
# zipfile's RuntimeError is an encrypted member, and by its subclass a version or a compression it does not know.
_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError)
_PACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_END = struct.Struct("<4s4H2LH")
"""End record of a zip archive without a comment."""


@dataclass(frozen=True)
class ArrayHeader:
    """Shape and type of one archived array."""

    shape: tuple[int, ...]
    """Its shape."""
    dtype: np.dtype[Any]
    """Its type; never an object."""

    @property
    def nbytes(self) -> int:
        """Size of the array [B]."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """Return the headers of all arrays, without unpacking one.

    Raises:
        DemoError: No zip archive, a broken header, objects, or sizes that contradict each other.
    """
    with _opened(path) as archive:
        return {name: header for name, (header, _) in _members(path, archive).items()}


def read_arrays(path: Path, limits: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Unpack the arrays that are named in `limits`, where present.

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
    """Return how many members the end record of the zip counts; None where it does not stand at the very end.

    `zipfile` does not compare: a flipped bit in one entry can hide the entries behind it.
    """
    with path.open("rb") as file:
        file.seek(-_END.size, 2)
        signature, _, _, _, count, _, _, comment = _END.unpack(file.read(_END.size))
    return count if signature == b"PK\x05\x06" and comment == 0 else None


def _header(stream: IO[bytes]) -> tuple[ArrayHeader, int]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
    else:
        raise ValueError(f"unknown .npy version {version}")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape {shape}")
    return ArrayHeader(tuple(int(extent) for extent in shape), dtype), stream.tell()
