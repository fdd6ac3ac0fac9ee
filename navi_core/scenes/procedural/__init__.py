"""Procedural scene generators: seeded families of indoor scenes, one module per kind."""

import hashlib
from collections.abc import Callable

import numpy as np

from navi_core.errors import ConfigError, did_you_mean
from navi_core.scenes.mesh import Mesh, check_mesh
from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.buildings import build_angled, build_hall, build_shop, build_stairs
from navi_core.scenes.procedural.halls import build_atrium, build_maze
from navi_core.scenes.procedural.storey import build_apartment, build_home, build_rooms, build_scan

FAMILIES: dict[str, Callable[[np.random.Generator], MeshBuilder]] = {
    "angled": build_angled,
    "apartment": build_apartment,
    "atrium": build_atrium,
    "hall": build_hall,
    "home": build_home,
    "maze": build_maze,
    "rooms": build_rooms,
    "scan": build_scan,
    "shop": build_shop,
    "stairs": build_stairs,
}
"""Generator of each family, by name."""


def generate_scene(family: str, seed: int) -> Mesh:
    """Generate scene `seed` of a family: connected, furnished, +Y up, floor at y = 0; all but scans are closed.

    Deterministic: a pure function of its arguments.

    Args:
        family: "apartment" (about 100 m², furnished rooms), "home" (the same with inner doors of 0.65–0.90 m),
            "maze", "atrium" (double-height hall with a gallery), "rooms" (rooms-v1: floors of 100–600 m²), "scan"
            (apartments and floors with holes, most of them without a ceiling), "hall" (one tall room with racks),
            "shop" (rows of shelves), "stairs" (two storeys) or "angled" (L-shaped floors with slanted walls).
        seed: 0 ≤ seed < 2**31.

    Raises:
        ConfigError: The family is unknown or the seed is out of range.
    """
    if family not in FAMILIES:
        hint = did_you_mean(str(family), FAMILIES)
        raise ConfigError(f"no scene family {family!r}; {hint}allowed: {', '.join(sorted(FAMILIES))}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise ConfigError(f"scene seed {seed!r} is not a whole number from 0 to {2**31 - 1}")
    # The family enters through a real digest: Python's own string hash differs between processes.
    code = int.from_bytes(hashlib.sha256(family.encode()).digest()[:4], "little")
    rng = np.random.default_rng(np.random.SeedSequence([code, int(seed)]))
    return check_mesh(FAMILIES[family](rng).build(f"{family}_{seed:04d}"))
