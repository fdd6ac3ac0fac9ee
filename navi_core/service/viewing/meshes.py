"""Meshes for viewers: a scene's display mesh as one compressed page message, kept in the home by its content.

A publisher stores the mesh of a scene that is watched; its scene event carries the key. A page server of the same home
finds it there, also when a recording is replayed later.
"""

import gzip
import logging
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from navi_core.errors import NaviError
from navi_core.record import navi_home
from navi_core.scenes import Scene
from navi_core.scenes.display_mesh import DisplayMesh, display_mesh
from navi_core.scenes.gmdag.scene import write_atomically
from navi_core.service.viewing.page_message import pack_message, unpack_message

KEY_DIGITS = 24
"""Hexadecimal digits of a mesh's key."""
MESH_NUMBERS = tuple(f"mesh_{part}" for part in range(KEY_DIGITS // 6))
"""Names of a key's parts in a scene event: 24 bits each, exact in single precision."""
MAX_BYTES = 512 * 2**20
"""Bound of all stored meshes of a home (bytes): those that were read longest ago are deleted. A new run of the scene
stores its mesh again; an older recording then shows points."""
_LOG = logging.getLogger("navi.service")


def mesh_key(scene: Scene) -> str:
    """Return the key of a scene's display mesh, of `KEY_DIGITS` digits; equal content has one key."""
    return scene.content_hash()[:KEY_DIGITS]


def key_numbers(key: str) -> dict[str, float]:
    """Split a key into the numbers of a scene event; an empty key into zeros."""
    return {name: float(int(key[6 * part :][:6] or "0", 16)) for part, name in enumerate(MESH_NUMBERS)}


def key_of(values: dict[str, float]) -> str:
    """Join the numbers of a scene event to a key; empty where the event has none."""
    parts = [values.get(name, 0.0) for name in MESH_NUMBERS]
    good = any(parts) and all(0 <= part < 1 << 24 for part in parts)
    return "".join(f"{int(part):06x}" for part in parts) if good else ""


def pack_mesh(scene: Scene) -> bytes:
    """Build the gzipped page message `mesh` of a scene.

    Its arrays are differences, which compress well: `high` (3 F,) is the number of vertices met so far minus the index,
    `positions` (3, V) and `semantic` (V,) are differences of neighbours, modulo 65536.

    Raises:
        SceneError: The scene has no surface.
    """
    mesh = display_mesh(scene)
    flat = mesh.faces.reshape(-1).astype(np.int64)
    met = np.concatenate([[0], np.maximum.accumulate(flat[:-1] + 1)])
    arrays = {
        "high": (met - flat).astype(np.uint32),
        "positions": np.diff(mesh.positions, axis=0, prepend=np.uint16(0)).T,
        "semantic": np.diff(mesh.semantic, prepend=np.uint16(0)),
    }
    names = {str(number): name for number, name in scene.semantic_names.items()}
    facts = {"name": scene.name, "origin": mesh.origin.tolist(), "step": mesh.step, "names": names}
    counts = {"triangles": len(mesh.faces), "before": mesh.before}
    # A fixed time: equal scenes are equal bytes.
    return gzip.compress(pack_message("mesh", {**facts, **counts}, arrays), 6, mtime=0)


def unpack_mesh(packed: bytes) -> DisplayMesh:
    """Return the mesh of a message of `pack_mesh`; the page does the same."""
    facts, arrays = unpack_message(gzip.decompress(packed))
    high = arrays["high"].astype(np.int64)
    met = np.concatenate([[0], np.cumsum(high == 0)[:-1]])
    return DisplayMesh(
        positions=arrays["positions"].cumsum(axis=1, dtype=np.uint16).T,
        semantic=arrays["semantic"].cumsum(dtype=np.uint16),
        faces=(met - high).astype(np.uint32).reshape(-1, 3),
        origin=np.array(facts["origin"]),
        step=facts["step"],
        before=facts["before"],
    )


def store_mesh(scene: Scene) -> str:
    """Write a scene's mesh to the home unless it is there; return its key.

    Raises:
        SceneError: It cannot be written, or the scene has no surface.
    """
    key = mesh_key(scene)
    path = navi_home() / "meshes" / f"{key}.mesh"
    if not path.exists():
        write_atomically(path, pack_mesh(scene))
        _bound(path)
    return key


def _bound(newest: Path) -> None:
    """Delete the meshes that were read longest ago, beyond `MAX_BYTES`; another process may do the same."""
    kept = 0
    with suppress(OSError):
        files = {file: file.stat() for file in newest.parent.glob("*.mesh")}
        for file in sorted(files, key=lambda one: (one == newest, files[one].st_mtime), reverse=True):
            kept += files[file].st_size
            if kept > MAX_BYTES and file != newest:
                file.unlink(missing_ok=True)


def stored_mesh(key: str) -> bytes | None:
    """Read a stored mesh; None where the key is unknown or no key."""
    if len(key) != KEY_DIGITS or not set(key) <= set("0123456789abcdef"):
        return None
    path = navi_home() / "meshes" / f"{key}.mesh"
    try:
        data = path.read_bytes()
    except OSError:
        return None
    # Its time is that of its last use; a home may be read-only.
    with suppress(OSError):
        path.touch()
    return data


class MeshStore:
    """Keys of scenes whose meshes are stored in the background, so that no flight waits for them."""

    def __init__(self) -> None:
        self._keys: dict[Scene, str] = {}

    def key(self, scene: Scene) -> str:
        """Return the key of a scene's mesh; empty until it is stored, and where it cannot be."""
        if scene not in self._keys:
            self._keys[scene] = ""
            threading.Thread(target=self._store, args=(scene,), name="navi-mesh", daemon=True).start()
        return self._keys[scene]

    def _store(self, scene: Scene) -> None:
        try:
            self._keys[scene] = store_mesh(scene)
        except NaviError as error:
            _LOG.warning("viewers see no mesh of %s: %s", scene.name, error)
