"""Mutates `.gmdag` files and flies what still loads: an error by name, or a scene that casts rays.

    python -m tests.scenes.gmdag.fuzz_gmdag COUNT [SEED] [LIBRARY]

LIBRARY is a build of the C++ kernels, for instance one with sanitizers whose runtime is preloaded: its tracer and
its twin of the CUDA kernels then cast the rays; without it the numba twin does.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from navi_core.config import CompileConfig
from navi_core.errors import SceneError
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag
from tests.conftest import box_triangles, mesh_of
from tests.scenes.nasty_rays import fly, use_library

EXTREMES = (0, 1, 2, 3, 127, 128, 255, 2**15, 2**16 - 1, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1)
HEADER = 64


def seed_files() -> list[bytes]:
    """Return small, valid files of both versions."""
    rooms = [
        compile_mesh(mesh_of(box_triangles((-2, 0, -2), (2, 2.5, 2)), "box"), CompileConfig(resolution=16)),
        compile_mesh(generate_scene("maze", 0), CompileConfig(resolution=32, max_leaf_triangles=4)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seed.gmdag"
        return [scene.save(file, version).read_bytes() for scene in rooms for version in (2, 1)]


def sealed(data: bytes) -> bytes:
    """Return a version 2 file with the hash that fits its content."""
    return data[:32] + hashlib.sha256(data[:32] + data[64:]).digest() + data[64:]


def with_meta(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a version 2 file with one value of its JSON header changed."""
    size = struct.unpack_from("<I", data, 28)[0]
    meta = json.loads(data[HEADER : HEADER + size])
    odd = [None, True, -1, 0, 2**31, 2**40, 10**30, 0.5, "x", "PASS", [], {}, [1, 2], float("nan"), {"1": "a"}]
    value = odd[rng.integers(len(odd))]
    if rng.random() < 0.6:
        name = sorted(meta["sections"])[rng.integers(len(meta["sections"]))]
        pair = meta["sections"][name]
        pair[rng.integers(2)] += int(rng.integers(-9, 10)) if rng.random() < 0.7 else int(rng.choice(EXTREMES))
    elif rng.random() < 0.2:
        del meta[sorted(meta)[rng.integers(len(meta))]]
    else:
        meta[sorted(meta)[rng.integers(len(meta))]] = value
    text = json.dumps(meta).encode()
    text += b" " * (-len(text) % 8)
    return data[:28] + struct.pack("<I", len(text)) + data[32:HEADER] + text + data[HEADER + size :]


def mutate(data: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """Return a damaged copy: bits, bytes, words, cuts, splices; version 2 mostly with its hash repaired."""
    version = data[4]
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        kind = rng.integers(7)
        # Half of the damage aims at the first kilobyte, where headers and roots are.
        place = int(rng.integers(min(len(out), 1024) if rng.random() < 0.5 else len(out)))
        if kind == 0:
            out[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            out[place] = int(rng.integers(256))
        elif kind == 2 and len(out) > 8:
            place = place // 4 * 4
            word = int(rng.choice(EXTREMES)) if rng.random() < 0.7 else int(rng.integers(2**32))
            out[place : place + 4] = struct.pack("<I", word)[: len(out) - place]
        elif kind == 3:
            del out[place : len(out) if rng.random() < 0.3 else place + int(rng.integers(1, 65))]
        elif kind == 4:
            other = others[rng.integers(len(others))]
            start = int(rng.integers(len(other)))
            piece = other[start : start + int(rng.integers(1, 129))]
            if rng.random() < 0.5:
                out[place : place + len(piece)] = piece
            else:
                out[place:place] = piece
        elif kind == 5 and len(out) > 32:
            field = int(rng.integers(1, 8)) * 4
            out[field : field + 4] = struct.pack("<I", int(rng.choice(EXTREMES)))
        elif version == 2 and len(out) > 72:
            try:
                out = bytearray(with_meta(bytes(out), rng))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error):
                continue
        if not out:
            break
    if version == 2 and len(out) > HEADER and rng.random() < 0.85:
        return sealed(bytes(out))
    return bytes(out)


def fuzz(count: int, seed: int = 0, tracers: Sequence[str] = ("numba",)) -> Counter[str]:
    """Load `count` mutated files; return how many were refused, flown, and refused only when flown.

    Anything but a `SceneError` or a scene that can be flown is an exception here, with the mutation's
    number in its notes; the slowest file is told under "slowest" [ms].
    """
    seeds = seed_files()
    reported: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "mutant.gmdag"
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            file.write_bytes(mutate(seeds[number % len(seeds)], seeds, rng))
            begin = time.perf_counter()
            try:
                reported[_outcome(file, tracers)] += 1
            except Exception as error:
                error.add_note(f"mutation {number} of seed {seed}")
                raise
            reported["slowest"] = max(reported["slowest"], round(1000 * (time.perf_counter() - begin)))
    return reported


def _outcome(file: Path, tracers: Sequence[str]) -> str:
    try:
        scene = load_gmdag(file)
    except SceneError:
        return "refused"
    try:
        fly(scene, tracers)
    except SceneError:
        return "refused in flight"
    return "flown"


def main(count: str, seed: str = "0", library: str | None = None) -> None:
    """Fuzz from a command line."""
    tracers: tuple[str, ...] = ("numba",)
    if library is not None:
        use_library(library)
        tracers = ("native", "cuda")
    reported = fuzz(int(count), int(seed), tracers)
    sys.stdout.write(json.dumps(reported) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
