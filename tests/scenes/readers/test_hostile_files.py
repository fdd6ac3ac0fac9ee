"""Scene files made to do harm: each is refused by name and reason, soon, and without much memory."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
import tracemalloc

import numpy as np
import pytest

from navi_core.config import CompileConfig
from navi_core.errors import GmdagError, MeshError
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag, read_mesh
from navi_core.scenes.gmdag.file import read_gmdag
from navi_core.scenes.readers.gltf import read_gltf, read_gltf_facts
from navi_core.scenes.readers.mesh_file import hash_source

TRIANGLE = np.array([0, 0, 0, 1, 0, 0, 0, 1, 0], "<f4").tobytes() + np.array([0, 1, 2], "<u4").tobytes()


def gltf(**changes):
    document = {
        "asset": {"version": "2.0"},
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"},
            {"bufferView": 1, "componentType": 5125, "count": 3, "type": "SCALAR"},
        ],
        "bufferViews": [{"buffer": 0, "byteLength": 36}, {"buffer": 0, "byteOffset": 36, "byteLength": 12}],
        "buffers": [{"byteLength": 48}],
    }
    return document | changes


def write_glb(path, document):
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(TRIANGLE), b"BIN\0") + TRIANGLE
    path.write_bytes(b"glTF" + struct.pack("<II", 2, 12 + len(body)) + body)
    return path


def test_text_of_gltf_1_is_refused_by_its_version(tmp_path):
    file = tmp_path / "scene.gltf"
    file.write_text(json.dumps({"asset": {"version": "1.0"}, "meshes": {}}))
    with pytest.raises(MeshError, match=r"glTF version 1\.0 is not supported; export version 2"):
        read_mesh(file)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scenes": [{"nodes": [7]}]}, "node"),
        ({"meshes": [{"primitives": [{"attributes": {"POSITION": 9}}]}]}, "9|beyond"),
        ({"meshes": [{"primitives": ["none"]}]}, "type|object"),
    ],
)
def test_reason_of_a_broken_gltf_names_no_python_exception(tmp_path, changes, reason):
    with pytest.raises(MeshError, match=reason) as refused:
        read_mesh(write_glb(tmp_path / "scene.glb", gltf(**changes)))
    assert not any(name in str(refused.value) for name in ("Error", "object has no attribute", "list index"))


UNBACKED = [
    {"componentType": 5126, "count": 199_999_999, "type": "VEC3"},
    {"componentType": 5125, "count": 199_999_998, "type": "SCALAR"},
]
SPARSE = {
    "componentType": 5126,
    "count": 100_000_000,
    "type": "VEC3",
    "sparse": {
        "count": 1,
        "indices": {"bufferView": 1, "componentType": 5125},
        "values": {"bufferView": 0},
    },
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accessors": UNBACKED}, "accessor 0 claims 199999999"),
        ({"accessors": [SPARSE, gltf()["accessors"][1]]}, "accessor 0 claims 100000000"),
        ({"bufferViews": [{"buffer": 0, "byteLength": 36, "byteStride": -4}]}, "stride of -4"),
    ],
)
def test_small_glb_with_gigabyte_claims_is_refused(tmp_path, changes, reason):
    with pytest.raises(MeshError, match=reason):
        read_mesh(write_glb(tmp_path / "bomb.glb", gltf(**changes)))


def test_instances_of_one_mesh_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("navi_core.scenes.readers.gltf.MAX_TRIANGLES", 5)
    nodes = {"nodes": [{"mesh": 0}] * 6, "scenes": [{"nodes": list(range(6))}]}
    with pytest.raises(MeshError, match="more than 5 triangles"):
        read_mesh(write_glb(tmp_path / "many.glb", gltf(**nodes)))


@pytest.mark.parametrize("uri", ["/dev/zero", "pipe", ".", "a%00b", "a" * 300, 5])
def test_non_file_buffer_is_refused(tmp_path, uri):
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "scene.gltf"
    file.write_text(json.dumps(gltf(buffers=[{"byteLength": 48, "uri": uri}])))
    with pytest.raises(MeshError, match="buffer"):
        read_mesh(file)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_non_file_scene_path_is_refused(tmp_path, kind):
    file = tmp_path / "scene.gmdag"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file.name)
    with pytest.raises(GmdagError, match=r"scene\.gmdag: "):
        load_gmdag(file)


def seal(data, text=None, head=None):
    """Return a version 2 file with another JSON header or fixed header, and the hash that fits."""
    size = struct.unpack_from("<I", data, 28)[0]
    text = data[64 : 64 + size] if text is None else text + b" " * (-len(text) % 8)
    fields = list(struct.unpack_from("<4sIIffffI", data))
    fields[7] = len(text)
    for place, value in (head or {}).items():
        fields[place] = value
    first, rest = struct.pack("<4sIIffffI", *fields), text + data[64 + size :]
    return first + hashlib.sha256(first + rest).digest() + rest


@pytest.fixture(scope="module")
def v2(tmp_path_factory):
    path = tmp_path_factory.mktemp("v2") / "maze.gmdag"
    return compile_mesh(generate_scene("maze", 0), CompileConfig(resolution=64)).save(path).read_bytes()


def meta_with(data, **changes):
    size = struct.unpack_from("<I", data, 28)[0]
    return json.dumps(json.loads(data[64 : 64 + size]) | changes).encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 200_000, "JSON header is broken"),
        ({"name": "half \ud800"}, "JSON header is broken"),
        ({"semantic_names": {"1": "half \ud800"}}, "JSON header is broken"),
        ({"semantic_names": {"9" * 5000: "x"}}, "JSON header is broken"),
        ({"sections": {"vertices": [1, 12]}}, "sections"),
        ({"compiler_version": 1}, "compiler version 1, this build reads 2"),
    ],
)
def test_forged_header_with_a_valid_hash_is_refused(v2, text, reason):
    with pytest.raises(GmdagError, match=reason):
        read_gmdag(seal(v2, text if isinstance(text, bytes) else meta_with(v2, **text)), "sealed.gmdag")


def section(data, name):
    """Return where a section begins, how many rows it has, and how many bytes."""
    size = struct.unpack_from("<I", data, 28)[0]
    sizes = json.loads(data[64 : 64 + size])["sections"]
    offset = 64 + size
    for other in ("vertices", "faces", "semantic", "nodes", "lengths", "items"):
        rows, length = sizes[other]
        if other == name:
            return offset, rows, length
        offset += length + -length % 8
    raise KeyError(name)


def poked(data, offset, value):
    return seal(data[:offset] + value + data[offset + len(value) :])


INNER, SURFACE = 2 << 30, 1 << 30


@pytest.mark.parametrize(
    ("row", "reference", "reason"),
    [
        (0, 3 << 30, "unknown kind"),
        (0, 70_000, "stray bits"),
        (2, INNER | 2, "cycle: .* (row 2, octant 5)"),
        (2, INNER | 0, "cycle"),
        (0, INNER | 500_000, "names a row that does not exist"),
        (0, SURFACE | 500_000, "names a list that does not exist"),
    ],
)
def test_invalid_node_reference_error_has_its_offset(v2, row, reference, reason):
    offset = section(v2, "nodes")[0] + 32 * row + 4 * 5
    with pytest.raises(GmdagError, match=reason.replace("(", "[(]").replace(")", "[)]")) as caught:
        read_gmdag(poked(v2, offset, struct.pack("<I", reference)), "nodes.gmdag")
    assert caught.value.offset == offset


def test_too_deep_and_unreferenced_rows_are_refused(v2):
    start, rows, _ = section(v2, "nodes")
    for row in range(rows):  # the deepest rows come last; each may name only what stands behind it
        if row + 1 == rows:
            break
        data = poked(v2, start + 32 * row, struct.pack("<I", INNER | row + 1))
        try:
            read_gmdag(data, "deep.gmdag")
        except GmdagError as error:
            if "too deep" in str(error):
                break
    else:
        pytest.fail("no chain of rows was too deep")
    with pytest.raises(GmdagError, match="nothing refers to") as caught:
        read_gmdag(poked(v2, start, struct.pack("<8I", *[0] * 8)), "lost.gmdag")
    assert caught.value.offset == start + 32


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("vertices", struct.pack("<f", float("nan")), "vertex 0 = .* lies outside the cube"),
        ("vertices", struct.pack("<f", 1e30), "vertex 0 = .* lies outside the cube"),
        ("faces", b"\x01", "names a vertex that does not exist"),
        ("faces", b"\xff\xff\xff\xff\xff\xff", "names a vertex that does not exist"),
        ("semantic", b"\x00", "semantic id 0, which has no name"),
        ("semantic", b"\xfa", "semantic id 250, which has no name"),
        ("lengths", b"\x00", "an empty list"),
        ("lengths", b"\x7f", "are stored"),
        ("items", b"\x01", "names a triangle beyond"),
        ("items", b"\xfe\xff\xff\xff\x7f", "names a triangle beyond"),
    ],
)
def test_section_with_invalid_values_is_refused(v2, name, value, reason):
    offset, _, length = section(v2, name)
    with pytest.raises(GmdagError, match=reason) as caught:
        read_gmdag(poked(v2, offset, value), f"{name}.gmdag")
    assert offset <= caught.value.offset < offset + length


@pytest.mark.parametrize("name", ["vertices", "faces", "semantic", "nodes", "lengths", "items"])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("change", [-1, 1, 2**30, 2**40])
def test_sizes_that_do_not_fit_are_refused_before_anything_is_allocated(v2, name, place, change):
    size = struct.unpack_from("<I", v2, 28)[0]
    sizes = json.loads(v2[64 : 64 + size])["sections"]
    sizes[name][place] += change
    tracemalloc.start()
    with pytest.raises(GmdagError):
        read_gmdag(seal(v2, meta_with(v2, sections=sizes)), "sizes.gmdag")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * len(v2) + (1 << 20)


def test_padding_and_trailing_bytes_are_refused(v2):
    with pytest.raises(GmdagError, match="8 trailing bytes"):
        read_gmdag(seal(v2 + bytes(8)), "long.gmdag")
    offset, _, length = section(v2, "lengths")
    assert length % 8, "this file has no padding to spoil"
    with pytest.raises(GmdagError, match="not padded with zeros") as caught:
        read_gmdag(poked(v2, offset + length, b"\1"), "padding.gmdag")
    assert caught.value.offset == offset + length


FRAMES = [{6: 1e-40}, {6: 1e37}, {3: 3e38}, {4: -1e9}, {6: 1e-6}]


@pytest.mark.parametrize("head", FRAMES)
def test_invalid_cube_is_refused_by_both_versions(v2, head):
    with pytest.raises(GmdagError, match=r"voxel size|outside the cube"):
        read_gmdag(seal(v2, head=head), "frame.gmdag")
    fields = [b"GDAG", 1, 64, 0.0, 0.0, 0.0, 0.1, 1]
    for place, value in head.items():
        fields[place] = value
    with pytest.raises(GmdagError, match="voxel size"):
        read_gmdag(struct.pack("<4sIIffffI", *fields) + struct.pack("<Q", 1 << 63 | 1 << 16), "frame.gmdag")


def test_damage_with_a_valid_hash_is_refused_or_flyable(v2):
    """The hash excludes accidents; forged content with a valid hash must still not reach a kernel."""
    import torch

    from navi_core.world import Field

    rng = np.random.default_rng(3)
    rays = torch.nn.functional.normalize(torch.randn(32, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    start = 64 + struct.unpack_from("<I", v2, 28)[0]
    valid = 0
    for _ in range(120):
        data = bytearray(v2)
        for place in rng.integers(start // 4, len(v2) // 4, rng.integers(1, 5)) * 4:
            data[place : place + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31, 2**32 - 1, rng.integers(2**32)])))
        try:
            scene = read_gmdag(seal(bytes(data)), "sealed.gmdag")
        except GmdagError:
            continue
        valid += 1
        origin = torch.from_numpy(scene.mesh_bounds.mean(axis=0)).float()[None]
        depth = Field([scene], threads=1).cast_rays(origin, rays, torch.zeros(1, dtype=torch.int32), 50.0).depth
        assert torch.isfinite(depth).all()
    assert valid > 5


@pytest.mark.parametrize("uri", ["/etc/passwd", "file:///etc/passwd", "https://example.org/a.bin", "%2Fetc%2Fpasswd"])
def test_a_buffer_lies_at_a_path_relative_to_its_file(tmp_path, uri):
    file = tmp_path / "scene.gltf"
    file.write_text(json.dumps(gltf(buffers=[{"byteLength": 48, "uri": uri}])))
    with pytest.raises(MeshError, match="no path relative to it"):
        read_mesh(file)


@pytest.mark.parametrize(
    "uri", ["../secret.key", "%2e%2e/secret.key", "inner/../../secret.key", "link.bin", "up/secret.key"]
)
def test_a_buffer_outside_the_folder_of_its_file_is_refused(tmp_path, uri):
    (tmp_path / "secret.key").write_bytes(TRIANGLE)
    folder = tmp_path / "scene"
    (folder / "inner").mkdir(parents=True)
    (folder / "link.bin").symlink_to(tmp_path / "secret.key")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    file = folder / "scene.gltf"
    file.write_text(json.dumps(gltf(buffers=[{"byteLength": 48, "uri": uri}])))
    for read in (read_mesh, hash_source):
        with pytest.raises(MeshError, match="lies outside its folder"):
            read(file)


@pytest.mark.parametrize("uri", ["inner/a%20b.bin", "./inner/../inner/a%20b.bin", "beside.bin"])
def test_a_buffer_below_the_folder_of_its_file_is_read(tmp_path, uri):
    """Also where each file is a link, as in a cache that names files by their content."""
    store, folder = tmp_path / "store", tmp_path / "scene"
    (folder / "inner").mkdir(parents=True)
    store.mkdir()
    (folder / "inner" / "a b.bin").write_bytes(TRIANGLE)
    (store / "1").write_bytes(TRIANGLE)
    (store / "0").write_text(json.dumps(gltf(buffers=[{"byteLength": 48, "uri": uri}])))
    (folder / "scene.gltf").symlink_to(store / "0")
    (folder / "beside.bin").symlink_to(store / "1")
    assert len(read_gltf(folder / "scene.gltf")) == 1


def test_instances_make_one_part_and_are_limited_in_number(tmp_path):
    def forest(count):
        planted = {"EXT_mesh_gpu_instancing": {"attributes": {"TRANSLATION": 2}}}
        row = {"componentType": 5126, "count": count, "type": "VEC3"}
        document = gltf(nodes=[{"mesh": 0, "extensions": planted}])
        document["accessors"].append(row)
        return write_glb(tmp_path / f"forest{count}.glb", document)

    assert len(read_gltf(forest(20_000))) == 1
    with pytest.raises(MeshError, match="9000000 instances, more than 1000000"):
        read_gltf_facts(forest(9_000_000))


def test_a_long_chain_of_nodes_costs_little(tmp_path):
    count = 30_000
    nodes = [{"children": [number + 1], "translation": [0, 0, 1]} for number in range(count)] + [{"mesh": 0}]
    file = write_glb(tmp_path / "chain.glb", gltf(nodes=nodes))
    began = time.process_time()
    (part,) = read_gltf(file)
    assert time.process_time() - began < 1.2
    assert part.points[:, 2].tolist() == [count] * 3


@pytest.mark.parametrize("transform", [{"rotation": [0, 0, 0, 0]}, {"translation": [0, 1e309, 0]}])
def test_a_transform_that_is_not_finite_is_refused_by_its_node(tmp_path, transform):
    nodes = [{"children": [1]}, {"mesh": 0, "name": "lamp", **transform}]
    with pytest.raises(MeshError, match=r"node 1 \('lamp'\) is not finite|Infinity"):
        read_gltf(write_glb(tmp_path / "odd.glb", gltf(nodes=nodes)))
