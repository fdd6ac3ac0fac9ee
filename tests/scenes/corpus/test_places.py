"""Buildings that people made: their list, its check by hashes, and levels of a game as meshes."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import SceneError
from navi_core.scenes import read_mesh
from navi_core.scenes.corpus.places import Place, digest, read_places

WAD = runpy.run_path(str(Path(__file__).resolve().parents[3] / "examples" / "wad_to_obj.py"))


def test_the_set_has_twenty_test_buildings_each_with_a_licence_a_recipe_and_a_hash():
    places = read_places("places-v1")
    assert len({place.name for place in places}) == len(places) == 25
    assert sum(place.split == "test" for place in places) == 20
    assert {place.kind for place in places} == {"level", "world"}
    assert all(len(place.sha256) == 64 and place.licence and place.get for place in places)
    with pytest.raises(SceneError, match="allowed: places-v1"):
        read_places("places-v2")


def test_fetch_names_the_commands_of_missing_buildings_and_refuses_changed_ones(tmp_path):
    run = CliRunner().invoke(build_app(), ["scenes", "fetch", "--root", str(tmp_path)])
    assert run.exit_code == 0, run.output
    assert "0 of 25 present" in run.output and run.output.count("git clone") == 7
    assert run.output.count("apt-get download") == 1
    level = tmp_path / "freedoom2_map01.obj"
    level.write_text("v 0 0 0\n")
    run = CliRunner().invoke(build_app(), ["scenes", "fetch", "--root", str(tmp_path)])
    assert isinstance(run.exception, SceneError) and "freedoom2_map01.obj" in str(run.exception)


def test_a_building_is_present_once_its_file_has_the_hash_of_the_recipe(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0\n")
    place = Place("a", "level", "test", "MIT", "a.obj", digest(tmp_path / "a.obj"), ("get it",))
    assert place.state(tmp_path) == "present"
    (tmp_path / "a.obj").write_text("v 0 0 1\n")
    assert place.state(tmp_path) == "changed"
    assert place.state(tmp_path / "elsewhere") == "missing"


def made_wad(file: Path) -> Path:
    """Write a level of two square rooms of 256 units with a closed door of 16 units between them."""
    xs = (0, 256, 272, 528)
    corners = [(x, y) for x in xs for y in (0, 256)]
    none = 0xFFFF
    # Corner 2n lies at y = 0, 2n + 1 at y = 256. A sector lies to the right of its side.
    outer = [(2, 0, 0), (4, 2, 1), (6, 4, 2), (1, 3, 0), (3, 5, 1), (5, 7, 2), (0, 1, 0), (7, 6, 2)]
    lines = [(a, b, 0, 0, 0, n, none) for n, (a, b, _) in enumerate(outer)]
    lines += [(3, 2, 0, 1, 0, 8, 9), (4, 5, 0, 1, 0, 11, 10)]
    sides = [sector for *_, sector in outer] + [0, 1, 1, 2]
    segs = [(0, [0, 3, 6, 8]), (1, [1, 4]), (2, [2, 5, 7, 9])]
    seg_rows, leaves = [], []
    for _, numbers in segs:
        leaves.append((len(numbers), len(seg_rows)))
        seg_rows += [(lines[n][0], lines[n][1], 0, n, 0, 0) for n in numbers]
    nodes = [(272, 0, 0, 256, *[0] * 8, 0x8002, 0x8001), (256, 0, 0, 256, *[0] * 8, 0, 0x8000)]
    sectors = [(0, 128, b"", b"", 0, 0, 0), (0, 0, b"", b"", 0, 0, 0), (0, 128, b"", b"", 0, 0, 0)]
    lumps = {"MAP01": b"", "THINGS": b""}
    for name, rows in (("LINEDEFS", [(*row[:5], row[5:]) for row in lines]),
                       ("SIDEDEFS", [((0, 0), (b"", b"", b""), s) for s in sides]),
                       ("VERTEXES", [(corner,) for corner in corners]), ("SEGS", seg_rows), ("SSECTORS", leaves),
                       ("NODES", [(n[:2], n[2:4], n[4:12], n[12:]) for n in nodes]),
                       ("SECTORS", [(*s[:2], s[2:4], *s[4:]) for s in sectors])):  # fmt: skip
        kind = np.dtype([(part[0], part[1] if part[1][0] == "S" else f"<{part[1]}", *part[2:])
                         for part in WAD["_LUMPS"][name]])  # fmt: skip
        lumps[name] = np.array(rows, kind).tobytes()
    lumps["END"] = b""
    data, entries = b"", b""
    for name, content in lumps.items():
        entries += np.array([12 + len(data), len(content)], "<i4").tobytes() + name.encode().ljust(8, b"\0")
        data += content
    file.write_bytes(b"PWAD" + np.array([len(lumps), 12 + len(data)], "<i4").tobytes() + data + entries)
    return file


def test_a_level_becomes_a_closed_mesh_with_open_doors(tmp_path):
    levels = WAD["read_levels"](made_wad(tmp_path / "toy.wad"))
    assert list(levels) == ["MAP01"]
    assert WAD["open_doors"](levels["MAP01"]).tolist() == [[0, 128], [0, 124], [0, 128]]
    faces = WAD["level_faces"](levels["MAP01"])
    width, depth = 528 / 48, 256 / 48
    for name in ("floor", "ceiling"):
        assert len(faces[name]) == 3
        areas = [
            0.5 * abs(np.sum(p[:, 0] * np.roll(p[:, 2], -1) - np.roll(p[:, 0], -1) * p[:, 2])) for p in faces[name]
        ]
        assert sum(areas) == pytest.approx(width * depth)
    WAD["write_obj"](tmp_path / "toy.obj", faces)
    mesh = read_mesh(tmp_path / "toy.obj")
    assert np.ptp(mesh.vertices, axis=0) == pytest.approx([width, 128 / 48, depth], abs=1e-4)
    assert {"floor", "ceiling", "wall"} <= set(mesh.semantic_names.values())
    # Floors look up, ceilings down.
    normals = np.cross(mesh.triangles[:, 1] - mesh.triangles[:, 0], mesh.triangles[:, 2] - mesh.triangles[:, 0])
    names = np.array([mesh.semantic_names[n] for n in mesh.face_semantic.tolist()])
    assert (normals[names == "floor", 1] > 0).all() and (normals[names == "ceiling", 1] < 0).all()
    with pytest.raises(SystemExit, match="is no WAD file"):
        WAD["read_levels"](tmp_path / "toy.obj")
