"""The `.gmdag` file of either version: reading, and the header that both versions begin with.

The fixed header is `HEADER`, little-endian: bytes 0–3 "GDAG", 4–7 version, 8–11 resolution, 12–23 minimum corner x y z
(float32) [m], 24–27 voxel size (float32) [m], 28–31 length of what follows, as the version counts it.
"""

import math
import os
from pathlib import Path

import numpy as np

from navi_core.errors import GmdagError, as_argument
from navi_core.scenes.gmdag.dag import Float64
from navi_core.scenes.gmdag.scene import HEADER, MAGIC, Scene
from navi_core.scenes.gmdag.version1 import read_v1, write_v1
from navi_core.scenes.gmdag.version2 import read_v2, write_v2

_READERS = {1: read_v1, 2: read_v2}
WRITERS = {1: write_v1, 2: write_v2}
"""Writer of each version."""
MIN_EDGE = 1e-3
"""Least edge of a scene's cube [m]."""
MAX_EDGE = 1e5
"""Greatest edge of a scene's cube [m]."""


def load_gmdag(path: Path | str) -> Scene:
    """Read a `.gmdag` file of either version.

    Args:
        path: The file.

    Raises:
        GmdagError: The file is missing, unreadable or breaks its format; offset and reason are named.
    """
    file = Path(path)
    try:
        if os.path.exists(file) and not os.path.isfile(file):
            # A device or a pipe would be read without end.
            raise GmdagError("is not a regular file", path=file)
        data = file.read_bytes()
    except FileNotFoundError:
        raise GmdagError(_missing(file), path=file) from None
    except (OSError, ValueError, MemoryError) as error:
        raise GmdagError(f"cannot be read: {error}", path=file) from None
    return read_gmdag(data, file)


def read_gmdag(data: bytes, path: Path | str) -> Scene:
    """Decode the bytes of a file of either version; see `read_v1` and `read_v2`.

    Args:
        data: The whole file.
        path: Where it came from, for messages and the scene's name.

    Raises:
        GmdagError: The file breaks its format; offset and reason are named.
    """
    try:
        version, *frame = _read_header(data, path)
        return _READERS[version](data, path, *frame)
    except GmdagError as error:
        advice = "; compile the scene again from its mesh" if data.startswith(MAGIC + b"\2\0\0\0") else ""
        raise GmdagError(error.reason + advice, path=path, offset=error.offset) from None


def _read_header(data: bytes, path: Path | str) -> tuple[int, int, Float64, float, int]:
    """Return version, resolution, minimum corner (3,) [m], voxel size [m] and length of a header, checked."""
    if len(data) < HEADER.size:
        raise GmdagError(f"truncated: {len(data)} bytes, the header alone has {HEADER.size}", offset=len(data))
    magic, version, resolution, x, y, z, voxel_size, length = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise GmdagError(
            f"not a .gmdag file (a mesh is compiled with: navi scenes compile {as_argument(path)}): wrong magic "
            f"{magic!r}, expected {MAGIC!r}",
            offset=0,
        )
    if version not in _READERS:
        raise GmdagError(f"version {version} is not supported; this build reads 1 and 2", offset=4)
    if not 16 <= resolution <= 2048 or resolution & (resolution - 1):
        raise GmdagError(f"resolution {resolution} is not a power of two from 16 to 2048", offset=8)
    for k, value in enumerate((x, y, z)):
        if not math.isfinite(value):
            raise GmdagError(f"minimum corner {'xyz'[k]} is {value}: bounds must be finite", offset=12 + 4 * k)
    if not (math.isfinite(voxel_size) and voxel_size > 0):
        raise GmdagError(f"voxel size {voxel_size} must be a positive number of metres", offset=24)
    edge = voxel_size * resolution
    if not MIN_EDGE <= edge <= MAX_EDGE:
        raise GmdagError(
            f"voxel size {voxel_size:g} makes a cube of {edge:g} m; allowed are {MIN_EDGE:g} to {MAX_EDGE:g} m",
            offset=24,
        )
    # Single precision must distinguish neighbouring voxels.
    farthest = max(max(abs(v), abs(v + edge)) for v in (x, y, z))
    if farthest > voxel_size * 2.0**24 or float(np.spacing(np.float32(farthest))) > voxel_size:
        raise GmdagError(
            f"voxel size {voxel_size:g} is finer than positions {farthest:g} m from the origin are exact", offset=24
        )
    return version, resolution, np.array([x, y, z], np.float64), voxel_size, length


def _missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"does not exist, and neither does the folder {folder}"
    near = sorted(p.name for p in folder.glob("*.gmdag"))[:5]
    known = f"; the folder holds {', '.join(near)}" if near else "; the folder holds no .gmdag file"
    return f"does not exist{known}. Compile a mesh with: navi scenes compile MESH --out {as_argument(folder)}"
