"""Mutates mesh files of every format: an error or a valid mesh, never a crash, a hang or a warning of numpy.

    python -m tests.scenes.readers.fuzz_meshes COUNT SEED LIBRARY

LIBRARY is a build of the C++ kernels, for instance one with sanitizers whose runtime is preloaded: what is still a
mesh is compiled at a small resolution and flown through it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from navi_core.config import CompileConfig
from navi_core.errors import SceneError
from navi_core.scenes import Mesh, compile_mesh, read_mesh
from navi_core.scenes.readers.mesh_file import read_facts
from tests.scenes.mesh_files import LEGEND, TABLE, annotated_room, room, room_ply
from tests.scenes.nasty_rays import fly, use_library
from tests.scenes.world_files import BOX, collada, include, package, visual

_SLOWEST = 5.0
"""Seconds that reading one small file may take on a busy machine."""
_WORDS = (b"-1", b"1e999", b"nan", b"999999999999", b"0", b'""', b"[]", b"null", b"{", b"\x00", b"\xff\xff\xff\xff")


def seeds(folder: Path) -> list[tuple[Path, Path]]:
    """Write one valid file of every kind; returns (file that is read, file that is mutated)."""
    from tests.scenes.corpus.test_doctor import replica_cad

    trimesh = pytest.importorskip("trimesh")
    box = trimesh.creation.box((4, 2.5, 3))
    found = [room(folder / "a.glb"), *(room_ply(folder / f"{f}.ply", form=f) for f in ("ascii", "binary_big_endian"))]
    found.append(room_ply(folder / "colors.ply", face_colors=np.zeros((2 + len(TABLE), 3))))
    for suffix in (".obj", ".stl", ".ply"):
        box.export(str(folder / f"box{suffix}"))
        found.append(folder / f"box{suffix}")
    (folder / "text.stl").write_text(trimesh.exchange.stl.export_stl_ascii(box))
    (folder / "text.gltf").write_text(_embedded(folder / "a.glb"))
    found += [folder / "text.stl", folder / "text.gltf"]
    pairs = [(file, file) for file in found]
    for how in ("texture", "linear"):
        mesh = room(folder / how / "x.glb")
        twin = annotated_room(folder / how / "x.semantic.glb", how)
        legend = folder / how / "x.semantic.txt"
        legend.write_text(LEGEND)
        pairs += [(mesh, mesh), (mesh, twin), (mesh, legend)]
    instance = replica_cad(folder / "cad") / "configs" / "scenes" / "apt_0.scene_instance.json"
    dae = folder / "box.dae"
    dae.write_text(collada())
    world = package(folder / "shop", include("crate", "1 2 0.5 0 0 1") + f"<model name='m'>{visual(BOX)}</model>")
    models = folder / "shop" / "models" / "crate"
    pairs += [(dae, dae), (world, world), (world, models / "model.sdf"), (world, models / "meshes" / "crate.dae")]
    pairs += [(instance, instance), (instance, next((folder / "cad" / "configs" / "objects").glob("*stool*")))]
    return pairs


def _embedded(path: Path) -> str:
    import base64

    from navi_core.scenes.readers.gltf_check import open_gltf

    gltf = open_gltf(path)
    data = path.read_bytes()[gltf.binary_start :]
    uri = "data:;base64," + base64.b64encode(data).decode()
    return json.dumps(gltf.document | {"buffers": [{"byteLength": len(data), "uri": uri}]})


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Change some bytes, put words in, cut pieces out or double them, or cut the end."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(max(len(out), 1)))
        kind = int(rng.integers(6))
        if kind == 0:
            out[at : at + 1] = bytes([int(rng.integers(256))])
        elif kind == 1:
            out[at : at + 4] = rng.integers(0, 2**32, dtype=np.uint64).astype("<u4").tobytes()
        elif kind == 2:
            word = _WORDS[int(rng.integers(len(_WORDS)))]
            out[at : at + len(word)] = word
        elif kind == 3:
            del out[at : at + int(rng.integers(1, 40))]
        elif kind == 4:
            out[at:at] = out[at : at + int(rng.integers(1, 40))]
        elif rng.random() < 0.3:
            del out[at:]
    return bytes(out)


def fuzz(count: int, seed: int = 0, tracers: Sequence[str] = ()) -> Counter[str]:
    """Read `count` mutated files; return how many were refused and how many valid. Raises on anything else.

    With tracers, a valid mesh is also compiled and flown, or is refused by the compiler ("not compiled").
    """
    rng = np.random.default_rng(seed)
    reported: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("error")
        pairs = seeds(Path(name))
        whole = {victim: victim.read_bytes() for _, victim in pairs}
        for number in range(count):
            read, victim = pairs[number % len(pairs)]
            victim.write_bytes(mutate(whole[victim], rng))
            began = time.process_time()
            try:
                facts = read_facts(read)
                assert facts.triangles >= 0
            except SceneError:
                pass
            try:
                mesh = read_mesh(read)
                assert np.isfinite(mesh.vertices).all() and mesh.faces.max() < len(mesh.vertices)
                assert set(mesh.face_semantic.tolist()) <= set(mesh.semantic_names)
                reported["valid"] += 1
                assert time.process_time() - began < _SLOWEST, f"mutation {number} of {victim.name} is slow"
                if tracers:
                    reported[_compiled(mesh, tracers)] += 1
            except SceneError as error:
                _check_reason(error)
                reported["refused"] += 1
            except Exception as error:
                error.add_note(f"mutation {number} of {victim.name}, seed {seed}")
                raise
            victim.write_bytes(whole[victim])
    return reported


def _compiled(mesh: Mesh, tracers: Sequence[str]) -> str:
    try:
        scene = compile_mesh(mesh, CompileConfig(resolution=32))
    except SceneError as error:
        _check_reason(error)
        return "not compiled"
    fly(scene, tracers)
    return "flown"


def _check_reason(error: SceneError) -> None:
    assert str(error)


def main(count: str, seed: str, library: str) -> None:
    """Fuzz from a command line."""
    use_library(library)
    sys.stdout.write(json.dumps(fuzz(int(count), int(seed), ("native", "cuda"))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
