"""The file format: round trips, and errors that name file and field."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from navi_core.demos import load_demonstration, save_demonstration
from navi_core.errors import DemoError
from tests.demos.conftest import make_demo


def rewrite(path, **changes):
    """Write the file anew with some arrays replaced, or left out where None."""
    with np.load(path, allow_pickle=False) as data:
        arrays = dict(data)
    arrays |= changes
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})


def test_demonstration_round_trip(recording):
    demo = load_demonstration(recording)
    original = make_demo(starts=(0, 12))
    np.testing.assert_array_equal(demo.observations, original.observations)
    np.testing.assert_array_equal(demo.actions, original.actions)
    assert demo.episodes() == [(0, 12), (12, 20)]
    assert (demo.scene, demo.decision_hz, demo.limits) == ("room", 10.0, (5.0, 2.0, 3.0, 3.0))
    assert demo.vocabulary == original.vocabulary
    assert demo.content_hash() == original.content_hash()


def test_content_hash_ignores_the_date_alone():
    base = make_demo().content_hash()
    assert make_demo(recording_date="2027-01-01").content_hash() == base
    for change in ({"seed": 1}, {"scene": "hall"}, {"decision_hz": 50.0}, {"starts": (0, 3)}, {"pilot": "planner"}):
        assert make_demo(**change).content_hash() != base


def broken(name, index, value):
    array = {"observations": make_demo().observations, "actions": make_demo().actions}[name].copy()
    array[index] = value
    return {name: array}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"actions": None}, ["actions", "missing"]),
        ({"decision_hz": None}, ["decision_hz", "missing", "navi demos expert"]),
        (broken("actions", (7, 2), np.nan), ["actions", "decision 7", "NaN"]),
        (broken("actions", (3, 0), 1.5), ["actions", "decision 3", "1.5", "[−1, 1]"]),
        (broken("observations", (5, 0, 2, 2), np.inf), ["observations", "decision 5"]),
        (broken("observations", (5, 0, 2, 2), 7.0), ["observations", "depth", "[0, 1]"]),
        (broken("observations", (5, 1, 2, 2), 1.5), ["observations", "semantic"]),
        (broken("observations", (5, 2, 2, 2), 0.5), ["observations", "valid"]),
        ({"observations": np.zeros((20, 2, 16, 8), np.float32)}, ["observations", "(20, 2, 16, 8)"]),
        ({"observations": np.zeros((0, 3, 16, 8), np.float32)}, ["observations", "no decision"]),
        ({"observations": np.zeros((20, 3, 0, 8), np.float32)}, ["observations", "no bin", "(20, 3, 0, 8)"]),
        ({"observations": np.zeros((20, 3, 16, 8))}, ["observations", "float64", "float32"]),
        ({"actions": np.zeros((19, 4), np.float32)}, ["actions", "(19, 4)"]),
        ({"episode_starts": np.zeros(20, bool)}, ["episode_starts", "first decision"]),
        ({"episode_starts": np.ones(19, bool)}, ["episode_starts", "(19,)"]),
        ({"azimuth_bins": np.int64(32)}, ["azimuth_bins", "32", "16"]),
        ({"decision_hz": np.float64(0)}, ["decision_hz", "0.0"]),
        ({"limits": np.array([5.0, 2.0, -3.0, 3.0])}, ["limits", "-3.0"]),
        ({"limits": np.array([5.0, 2.0])}, ["limits", "(2,)"]),
        ({"rewards": np.zeros(20)}, ["rewards", "allowed", "actions"]),
        ({"format_version": np.int64(2)}, ["format_version", "2"]),
        ({"scene": np.array([1, 2])}, ["scene", "text"]),
        ({"vocabulary": np.array("[1")}, ["vocabulary", "JSON"]),
        ({"vocabulary": np.array('{"a": 1, "b": 1}')}, ["vocabulary", "share"]),
    ],
)
def test_demonstration_names_the_broken_field(recording, change, words):
    rewrite(recording, **change)
    with pytest.raises(DemoError) as caught:
        load_demonstration(recording)
    for word in [str(recording), *words]:
        assert word in str(caught.value)


def test_objects_are_never_unpickled(tmp_path, recording):
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/boom",)

    rewrite(recording, scene=np.array([Bomb()], dtype=object))
    with pytest.raises(DemoError, match=r"scene.*objects"):
        load_demonstration(recording)
    assert not (tmp_path / "boom").exists()


def test_archive_refuses_an_expanding_array(tmp_path, recording):
    """The header of an array and the directory of the archive must agree, before anything is allocated."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 3, 256, 48)})
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(recording) as old, zipfile.ZipFile(path, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            new.writestr(item, header.getvalue() if item.filename == "observations.npy" else data)
    with pytest.raises(DemoError, match=r"observations.*announces"):
        load_demonstration(path)


def test_array_header_that_ends_in_a_bracket_is_refused(tmp_path, recording):
    """numpy reads headers as Python."""
    path = tmp_path / "bracket.npz"
    header = b"{'descr': '<f4', 'shape': ((((, ".ljust(117) + b"\n"
    with zipfile.ZipFile(recording) as old, zipfile.ZipFile(path, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            new.writestr(item, b"\x93NUMPY\x01\x00\x76\x00" + header if item.filename == "actions.npy" else data)
    with pytest.raises(DemoError, match=r"actions.*header cannot be read"):
        load_demonstration(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archive_refuses_other_compression_methods(tmp_path, recording, method):
    """Others make gigabytes of a few kilobytes."""
    path = tmp_path / "packed.npz"
    with zipfile.ZipFile(recording) as old, zipfile.ZipFile(path, "w", method) as new:
        for item in old.infolist():
            new.writestr(item.filename, old.read(item))
    with pytest.raises(DemoError, match=r"packed by .*allowed: deflate"):
        load_demonstration(path)


def test_recording_beyond_memory_is_refused_before_unpacking(recording, monkeypatch):
    from navi_core.demos import archive

    monkeypatch.setattr(archive, "whole_memory", lambda: 40_000)
    with pytest.raises(DemoError, match="GiB of memory"):
        load_demonstration(recording)


def test_checks_and_hash_need_little_extra_memory():
    demo = make_demo(6_000)
    size = demo.observations.nbytes
    tracemalloc.start()
    try:
        replace(demo).content_hash()
        assert tracemalloc.get_traced_memory()[1] < 0.2 * size
    finally:
        tracemalloc.stop()


def test_cut_and_flipped_files_are_refused(tmp_path, recording):
    whole = recording.read_bytes()
    path = tmp_path / "bad.npz"
    rng = np.random.default_rng(0)
    cuts = [whole[:n] for n in rng.integers(0, len(whole), 40)]
    flips = []
    for place in rng.integers(0, len(whole), 200):
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        flips.append(bytes(data))
    for data in cuts:
        path.write_bytes(data)
        with pytest.raises(DemoError):
            load_demonstration(path)
    content, refused = load_demonstration(recording).content_hash(), 0
    for data in flips:
        path.write_bytes(data)
        try:
            assert load_demonstration(path).content_hash() == content, "a flipped bit passed into the data"
        except DemoError:
            refused += 1
    assert refused > 150


def test_pipes_and_devices_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    for name in ("pipe.npz", "zero.npz"):
        with pytest.raises(DemoError, match=rf"{name}.*a pipe or a device"):
            load_demonstration(tmp_path / name)


def test_missing_file_or_field_is_named(tmp_path):
    with pytest.raises(DemoError, match="no such file"):
        load_demonstration(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DemoError, match="not an"):
        load_demonstration(tmp_path / "text.npz")


def test_failed_save_leaves_no_partial_file(tmp_path):
    save_demonstration(tmp_path / "a" / "x.npz", make_demo())
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["x.npz"]
