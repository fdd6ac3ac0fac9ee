"""Datasets: an index that is believed only as far as it is true, one vocabulary, nothing lost in memory."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from navi_core.demos import index_folder, ingest, load_dataset, read_index, save_demonstration
from navi_core.errors import DemoError
from tests.demos.conftest import make_demo


def make_dataset(folder, demos):
    for number, demo in enumerate(demos):
        save_demonstration(folder / f"{number}.npz", demo)
    index_folder(folder, [f"{n}.npz" for n in range(len(demos))])
    return folder


def test_dataset_keeps_observations_bit_for_bit(tmp_path):
    demos = [make_demo(starts=(0, 12)), make_demo(seed=1, scene="hall")]
    data = load_dataset([make_dataset(tmp_path / "a", demos)])
    expected = np.concatenate([demo.observations for demo in demos])
    np.testing.assert_array_equal(data.observations(np.arange(40)), expected)
    np.testing.assert_array_equal(data.actions, np.concatenate([demo.actions for demo in demos]))
    assert [(e.start, e.stop, e.scene) for e in data.episodes] == [(0, 12, "room"), (12, 20, "room"), (20, 40, "hall")]
    assert data.episodes[0].file == data.episodes[1].file != data.episodes[2].file
    assert (data.azimuth_bins, data.elevation_bins) == (16, 8)


def test_dataset_merges_vocabularies(tmp_path):
    one = make_demo()
    other = make_demo(seed=1, vocabulary={"surface": 1, "door": 3, "sofa": 2})
    data = load_dataset([make_dataset(tmp_path / "a", [one, other])])
    assert data.vocabulary == {"surface": 1, "door": 2, "sofa": 3, "wall": 4}
    before = np.concatenate([one.observations[:, 1], other.observations[:, 1]])
    names = [["", "surface", "door", "wall"], ["", "surface", "sofa", "door"]]
    for half, own in enumerate(names):
        rows = slice(20 * half, 20 * half + 20)
        for number in (1, 2, 3):
            found = data.semantic[rows][before[rows] == number]
            assert (found == data.vocabulary[own[number]]).all()


def test_unnamed_ids_stay_unnamed_after_the_merge(tmp_path):
    named, nameless = make_demo(), make_demo(seed=1, vocabulary={})
    data = load_dataset([make_dataset(tmp_path / "a", [named, nameless])])
    assert data.vocabulary == {"surface": 1, "door": 2, "wall": 3}
    np.testing.assert_array_equal(data.semantic[:20], named.observations[:, 1])
    assert (data.semantic[20:] == 1).all() and nameless.observations[:, 1].max() == 3
    # Among themselves they keep their ids.
    alone = load_dataset([make_dataset(tmp_path / "b", [nameless])])
    np.testing.assert_array_equal(alone.semantic, nameless.observations[:, 1])


def test_dataset_refuses_more_names_than_ids(tmp_path):
    def names(k):
        return {"surface": 1} | {f"{k}-{n}": n for n in range(2, 12_000)}

    folder = make_dataset(tmp_path / "a", [make_demo(2, seed=k, vocabulary=names(k)) for k in range(6)])
    with pytest.raises(DemoError, match="semantic names"):
        load_dataset([folder])


def test_dataset_hash_covers_content(tmp_path):
    one = load_dataset([make_dataset(tmp_path / "a", [make_demo(), make_demo(seed=1)])])
    same = load_dataset([make_dataset(tmp_path / "b", [make_demo(recording_date="2027"), make_demo(seed=1)])])
    other = load_dataset([make_dataset(tmp_path / "c", [make_demo(seed=3), make_demo(seed=2)])])
    assert one.content_hash == same.content_hash != other.content_hash
    both = load_dataset([tmp_path / "a", tmp_path / "c"])
    assert len(both) == 80 and both.content_hash not in (one.content_hash, other.content_hash)


def test_dataset_names_the_field_that_differs(tmp_path):
    with pytest.raises(DemoError, match=r"1\.npz: decision_hz.*50"):
        make_dataset(tmp_path / "a", [make_demo(), make_demo(decision_hz=50.0)])
    make_dataset(tmp_path / "b", [make_demo()])
    make_dataset(tmp_path / "c", [make_demo(bins=(8, 8))])
    with pytest.raises(DemoError, match="azimuth_bins"):
        load_dataset([tmp_path / "b", tmp_path / "c"])


def test_dataset_refuses_a_stale_or_broken_index(tmp_path):
    folder = make_dataset(tmp_path / "a", [make_demo(), make_demo(seed=1)])
    save_demonstration(folder / "1.npz", make_demo(seed=7))
    with pytest.raises(DemoError, match=r"1\.npz.*navi demos ingest"):
        load_dataset([folder])
    index = json.loads((folder / "index.json").read_text())
    index["files"][0]["file"] = "../a/0.npz"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DemoError, match="bad row"):
        read_index(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(DemoError, match="cannot be read"):
        read_index(folder)
    with pytest.raises(DemoError, match=r"no dataset.*navi demos"):
        read_index(tmp_path)


@pytest.mark.parametrize("decisions", [2, 30])
def test_dataset_refuses_an_index_with_a_wrong_length(tmp_path, decisions):
    """More decisions than the files hold would be uninitialised memory."""
    folder = make_dataset(tmp_path / "a", [make_demo()])
    index = json.loads((folder / "index.json").read_text())
    index["files"][0]["decisions"] = decisions
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DemoError, match=r"0\.npz.*navi demos ingest"):
        load_dataset([folder])


def test_dataset_beyond_memory_is_refused_before_reading(tmp_path):
    folder = make_dataset(tmp_path / "a", [make_demo()])
    index = json.loads((folder / "index.json").read_text())
    index["files"][0]["decisions"] = 10**12
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DemoError, match="GiB"):
        load_dataset([folder])


def test_memory_mapped_dataset_has_the_same_bits(tmp_path, monkeypatch, caplog):
    from navi_core.demos import archive

    demos = [make_demo(seed=seed, vocabulary={"surface": 1, "door": 3, "sofa": 2}) for seed in range(9)]
    folder = make_dataset(tmp_path / "a", [*demos, make_demo(seed=9)])
    held = load_dataset([folder])
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    # One recording fits, ten do not.
    monkeypatch.setattr(archive, "whole_memory", lambda: 100_000)
    mapped = load_dataset([folder])
    assert "read from there" in caplog.text and isinstance(mapped.depth.base, np.memmap)
    index = np.arange(len(held))[::-1]
    np.testing.assert_array_equal(mapped.observations(index), held.observations(index))
    np.testing.assert_array_equal(mapped.flown, held.flown)
    # A file without a name: a kill leaves nothing.
    assert list((tmp_path / "home").iterdir()) == []


def test_ingest_accepts_valid_files_and_reports_broken_ones(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    save_demonstration(source / "a.npz", make_demo())
    save_demonstration(source / "b.npz", make_demo(seed=1, starts=(0, 5)))
    save_demonstration(source / "c.npz", make_demo(seed=2, decision_hz=20.0))
    save_demonstration(source / "d.npz", make_demo())
    (source / "e.npz").write_bytes(b"nothing")
    (source / "notes.txt").write_text("not one of them")
    rows = ingest(source, out)
    assert [(row.file, row.accepted) for row in rows] == [
        ("a.npz", True), ("b.npz", True), ("c.npz", False), ("d.npz", False), ("e.npz", False)
    ]  # fmt: skip
    assert "decision_hz" in rows[2].reason and "same content as a.npz" in rows[3].reason and "archive" in rows[4].reason
    assert (rows[1].episodes, rows[1].decisions) == (2, 20)
    data = load_dataset([out])
    assert len(data) == 40 and len(data.episodes) == 3
    # Again: everything is there already, and the dataset stays what it is.
    again = ingest(source, out)
    assert not any(row.accepted for row in again)
    assert load_dataset([out]).content_hash == data.content_hash
    # In place: the same files, indexed where they are.
    ingest(source, source)
    assert load_dataset([source]).content_hash == data.content_hash


def test_ingest_without_valid_files_names_the_first_fault(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(DemoError, match=r"not one good recording; x\.npz"):
        ingest(tmp_path, tmp_path / "out")
    with pytest.raises(DemoError, match="no such folder"):
        ingest(tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DemoError, match="neither"):
        ingest(tmp_path / "empty", tmp_path / "out")


def test_minari_round_trip(tmp_path):
    minari = pytest.importorskip("minari", reason="the extra minari is not installed")
    from navi_core.demos import export_minari, import_minari

    demos = [make_demo(starts=(0, 12)), make_demo(seed=1, scene="hall", pilot="frontier", source_hash="5eed")]
    folder = tmp_path / "set"
    assert export_minari(folder, iter(demos), dataset_id="navi/test-v0") == 3
    theirs = minari.MinariDataset(folder / "data")
    assert theirs.total_episodes == 3
    assert theirs[0].observations.shape == (13, 3, 16, 8) and theirs[0].actions.shape == (12, 4)
    back = list(import_minari(folder))
    np.testing.assert_array_equal(np.concatenate([d.observations for d in back[:2]]), demos[0].observations)
    np.testing.assert_array_equal(back[2].actions, demos[1].actions)
    assert (back[2].scene, back[2].pilot, back[2].vocabulary) == ("hall", "frontier", demos[1].vocabulary)
    assert [demo.source_hash for demo in back] == ["", "", "5eed"]
    rows = ingest(folder, tmp_path / "out")
    assert rows[0].accepted and rows[0].episodes == 3
    data = load_dataset([tmp_path / "out"])
    assert len(data) == 40 and data.sources == {"5eed"}
    with pytest.raises(DemoError, match="exists"):
        export_minari(folder, demos, dataset_id="navi/test-v0")


def test_minari_recovers_the_environment_of_generated_scenes(tmp_path):
    minari = pytest.importorskip("minari", reason="the extra minari is not installed")
    from navi_core.demos import export_minari

    demos = [make_demo(scene="apartment_0003", max_distance=20.0), make_demo(scene="maze_0001", max_distance=20.0)]
    export_minari(tmp_path / "set", demos, dataset_id="navi/test-v0")
    env = minari.MinariDataset(tmp_path / "set" / "data").recover_environment()
    assert env.reset(seed=0)[0].shape == (3, 16, 8) and env.action_space.shape == (4,)
    inner = env.unwrapped._batch.env
    assert [scene.name for scene in inner.field.scenes] == ["apartment_0003", "maze_0001"]
    assert inner.config.max_distance == 20.0


def test_minari_import_refuses_malformed_files(tmp_path):
    h5py = pytest.importorskip("h5py", reason="the extra minari is not installed")
    from navi_core.demos import import_minari

    demo = make_demo()

    def write(name, *, steps=21, attributes=True, link=False):
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            group = file.create_group("episode_0")
            if link:
                group["observations"] = h5py.ExternalLink("/etc/passwd", "x")
            else:
                group["observations"] = np.resize(demo.observations, (steps, 3, 16, 8))
            group["actions"] = demo.actions
            if attributes:
                group.attrs.update({"navi_scene": "room", "navi_decision_hz": 10.0, "navi_recording_date": "now"})
        return path

    for path, words in (
        (write("rate.hdf5", attributes=False), "navi_decision_hz"),
        (write("limits.hdf5"), "navi_limits"),
        (write("short.hdf5", steps=20), r"T\+1"),
        (write("link.hdf5", link=True), "link"),
    ):
        with pytest.raises(DemoError, match=words):
            list(import_minari(path))
    (tmp_path / "text.hdf5").write_text("no")
    with pytest.raises(DemoError, match="not an HDF5"):
        list(import_minari(tmp_path / "text.hdf5"))


def minari_episode(file, name="episode_0", *, seed=0, empty=False):
    """Add an episode as another program would write it; returns its group."""
    demo = make_demo(seed=seed)
    group = file.create_group(name)
    if not empty:
        group["observations"] = np.resize(demo.observations, (21, 3, 16, 8))
        group["actions"] = demo.actions
    facts = {"navi_scene": "room", "navi_decision_hz": 10.0, "navi_recording_date": "now"}
    group.attrs.update(facts | {"navi_limits": np.array([5.0, 2.0, 3.0, 3.0])})
    return group


def test_minari_import_refuses_expanding_arrays(tmp_path):
    """Arrays that were announced and never written, chunks larger than their array, and deflate made twice."""
    h5py = pytest.importorskip("h5py", reason="the extra minari is not installed")
    from navi_core.demos import import_minari

    shape = (100_001, 3, 16, 8)

    def hostile(name, **settings):
        path = tmp_path / f"{name}.hdf5"
        with h5py.File(path, "w") as file:
            group = minari_episode(file, empty=True)
            group["actions"] = np.zeros((20, 4), np.float32)
            group.create_dataset("observations", dtype="f4", **settings)
        return path

    def twice():
        path = tmp_path / "twice.hdf5"
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk(shape)
        plan.set_deflate(9)
        plan.set_deflate(9)
        with h5py.File(path, "w") as file:
            group = minari_episode(file, empty=True)
            group["actions"] = np.zeros((20, 4), np.float32)
            space = h5py.h5s.create_simple(shape)
            array = h5py.h5d.create(group.id, b"observations", h5py.h5t.IEEE_F32LE, space, plan)
            packed = zlib.compress(zlib.compress(bytes(4 * int(np.prod(shape))), 1), 9)
            array.write_direct_chunk((0, 0, 0, 0), packed)
        return path

    chunks = (200_000, 3, 16, 8)
    for path, words in (
        (hostile("contiguous", shape=shape), "never written in full"),
        (hostile("chunked", shape=shape, chunks=True), "never written in full"),
        (hostile("chunk", shape=(21, 3, 16, 8), chunks=chunks, maxshape=(None, 3, 16, 8)), "chunks of"),
        (twice(), "bytes of episodes in"),
    ):
        assert path.stat().st_size < 20_000
        with pytest.raises(DemoError, match=words):
            list(import_minari(path))


def test_minari_import_refuses_links(tmp_path):
    h5py = pytest.importorskip("h5py", reason="the extra minari is not installed")
    from navi_core.demos import import_minari

    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["flown"] = np.full((21, 4), 0.5, np.float32)
    outside = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/")

    def written(name, change):
        with h5py.File(tmp_path / name, "w") as file:
            change(file)
        return tmp_path / name

    def array(file):
        minari_episode(file).create_dataset("infos", (10**9,), "f4")

    for path, words in (
        (written("infos.hdf5", lambda file: minari_episode(file).__setitem__("infos", outside)), "infos.*link"),
        (written("group.hdf5", lambda file: file.__setitem__("episode_0", outside)), "episode_0.*link"),
        (written("array.hdf5", array), "no group"),
        (written("loop.hdf5", lambda file: file.__setitem__("episode_0", h5py.SoftLink("/episode_0"))), "link"),
    ):
        with pytest.raises(DemoError, match=words):
            list(import_minari(path))


def test_minari_attributes_are_type_checked(tmp_path):
    h5py = pytest.importorskip("h5py", reason="the extra minari is not installed")
    from navi_core.demos import import_minari

    def written(name, key, value):
        with h5py.File(tmp_path / name, "w") as file:
            minari_episode(file, "episode_007").attrs[key] = value
        return tmp_path / name

    (demo,) = import_minari(written("bytes.hdf5", "navi_scene", np.bytes_("room")))
    assert demo.scene == "room"
    (demo,) = import_minari(written("one.hdf5", "navi_decision_hz", np.array([20.0])))
    assert demo.decision_hz == 20.0
    for key, value in (
        ("navi_scene", np.array(["a", "b"], dtype=h5py.string_dtype())),
        ("navi_scene", h5py.Empty("S10")),
        ("navi_decision_hz", "ten"),
        ("navi_limits", np.ones(5)),
    ):
        with pytest.raises(DemoError, match=f"episode_007: {key} is"):
            list(import_minari(written("bad.hdf5", key, value)))
    with h5py.File(tmp_path / "two.hdf5", "w") as file:
        minari_episode(file, "episode_0"), minari_episode(file, "episode_00", seed=1)
    with pytest.raises(DemoError, match="the same number as"):
        list(import_minari(tmp_path / "two.hdf5"))


def test_minari_export_holds_one_recording_in_memory(tmp_path):
    pytest.importorskip("minari", reason="the extra minari is not installed")
    import weakref

    from navi_core.demos import export_minari

    living = []

    def demos():
        for seed in range(4):
            demo = make_demo(seed=seed, starts=(0, 9))
            living.append(weakref.ref(demo))
            yield demo
            del demo
            # The first one and the one before may still be held.
            assert sum(ref() is not None for ref in living) <= 2

    assert export_minari(tmp_path / "set", demos(), dataset_id="navi/test-v0") == 8
