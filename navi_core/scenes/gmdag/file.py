"""Reading `.gmdag` files of either version; importing this module also makes both writable."""

import os
import struct
from pathlib import Path

from navi_core.errors import GmdagError, as_argument
from navi_core.scenes.gmdag.scene import MAGIC, Scene
from navi_core.scenes.gmdag.version1 import read_v1
from navi_core.scenes.gmdag.version2 import read_v2


def load_gmdag(path: Path | str) -> Scene:
    """Read a `.gmdag` file of either version.

    Args:
        path: The file.

    Raises:
        GmdagError: The file is missing, unreadable or breaks its format; offset and reason are named.
    """
    try:
        file = Path(path)
    except TypeError:
        raise GmdagError(f"the path of a .gmdag file is a string or a Path, not {type(path).__name__}") from None
    try:
        if os.path.exists(file) and not os.path.isfile(file):
            # A device or a pipe would be read without end.
            raise GmdagError("is not a regular file", path=file)
        data = file.read_bytes()
    except FileNotFoundError:
        raise GmdagError(_missing(file), path=file) from None
    except (OSError, ValueError, MemoryError) as error:
        raise GmdagError(f"cannot be read: {error}", path=file) from None
    if len(data) < 8:
        raise GmdagError(f"truncated: {len(data)} bytes, the header alone needs more", path=file, offset=len(data))
    magic, version = struct.unpack_from("<4sI", data)
    if magic != MAGIC:
        raise GmdagError(
            f"not a .gmdag file (a mesh is compiled with: navi scenes compile {as_argument(file)}): wrong magic "
            f"{magic!r}, expected {MAGIC!r}",
            path=file,
            offset=0,
        )
    if version == 1:
        return read_v1(data, file)
    if version == 2:
        return read_v2(data, file)
    raise GmdagError(f"version {version} is not supported; this build reads 1 and 2", path=file, offset=4)


def _missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"does not exist, and neither does the folder {folder}"
    near = sorted(p.name for p in folder.glob("*.gmdag"))[:5]
    known = f"; the folder holds {', '.join(near)}" if near else "; the folder holds no .gmdag file"
    return f"does not exist{known}. Compile a mesh with: navi scenes compile MESH --out {as_argument(folder)}"
