"""Taking in recordings: nothing is lost to a kill, read twice without need, or held in memory together."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import shutil
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.demos import ingest, load_dataset, load_demonstration, read_index, save_beside, save_demonstration
from navi_core.demos.dataset import stamp, write_index
from navi_core.errors import DemoError
from tests.demos.conftest import make_demo

module = importlib.import_module("navi_core.demos.ingest")


@pytest.fixture
def minari_set(tmp_path):
    """Return a function that writes demonstrations as a Minari dataset."""
    pytest.importorskip("minari", reason="the extra minari is not installed")
    from navi_core.demos import export_minari

    def write(name, *demos):
        export_minari(tmp_path / name, iter(demos), dataset_id="navi/test-v0")
        return tmp_path / name

    return write


@pytest.fixture
def reads(monkeypatch):
    """The names of the `.npz` files that are read."""
    names = []
    load = module.load_demonstration
    monkeypatch.setattr(module, "load_demonstration", lambda path: names.append(path.name) or load(path))
    return names


def contents(folder):
    return sorted(row["content_hash"] for row in read_index(folder)["files"])


def test_killed_ingest_goes_on_with_missing_episodes(tmp_path, minari_set, monkeypatch):
    source = minari_set("set", *(make_demo(seed=seed) for seed in range(4)))
    save, saved = module.save_beside, []

    def dying(paths, demo, **settings):
        saved.append(save(paths, demo, **settings) if not saved else 1 / 0)
        return saved[-1]

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_beside", dying)
        with pytest.raises(ZeroDivisionError):
            ingest(source, tmp_path / "out")
    (row,) = ingest(source, tmp_path / "out")
    assert (row.accepted, row.episodes) == (True, 3)
    ingest(source, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole") and len(contents(tmp_path / "out")) == 4
    (row,) = ingest(source, tmp_path / "out")
    assert row.known and not row.accepted


def test_grown_dataset_adds_new_episodes_once(tmp_path, minari_set):
    first, second = make_demo(), make_demo(seed=1)
    ingest(minari_set("v0", first), tmp_path / "out")
    (row,) = ingest(minari_set("v1", first, second, second), tmp_path / "out")
    assert (row.accepted, row.episodes, row.decisions) == (True, 1, 20)
    assert len(list((tmp_path / "out").glob("*.npz"))) == len(contents(tmp_path / "out")) == 2


def test_ingest_holds_one_episode_in_memory(tmp_path, minari_set):
    demos = [make_demo(400, seed=seed) for seed in range(8)]
    source, size = minari_set("set", *demos), demos[0].observations.nbytes
    del demos
    tracemalloc.start()
    try:
        ingest(source, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 5 * size
    finally:
        tracemalloc.stop()


def test_ingest_reads_subfolders_but_no_hidden_files(tmp_path):
    source = tmp_path / "in"
    for seed, name in enumerate(("flight.npz", "monday/flight.npz", "monday/.part/flight.npz", "out/flight.npz")):
        save_demonstration(source / name, make_demo(seed=seed))
    rows = ingest(source, source / "out")
    assert [row.file for row in rows] == ["flight.npz", "monday/flight.npz"] and all(row.accepted for row in rows)
    # The folder's own stays, and none is written over.
    names = ["flight.1.npz", "flight.npz", "monday-flight.npz"]
    assert [row["file"] for row in read_index(source / "out")["files"]] == names
    assert [row.file for row in ingest(source, source)] == ["flight.npz"]


def test_ingest_rereads_only_changed_files(tmp_path, reads):
    source, out = tmp_path / "in", tmp_path / "out"
    for seed in range(3):
        save_demonstration(source / f"{seed}.npz", make_demo(seed=seed))
    ingest(source, out)
    assert len(reads) == 3
    save_demonstration(source / "3.npz", make_demo(seed=3))
    reads.clear()
    rows = ingest(source, out)
    assert reads == ["3.npz"] and [row.known for row in rows] == [True, True, True, False]
    # In the source it is new content. In the dataset itself the present content is valid.
    save_demonstration(source / "0.npz", make_demo(seed=7, steps=30))
    save_demonstration(out / "1.npz", make_demo(seed=8, steps=40))
    reads.clear()
    ingest(source, out)
    assert sorted(reads) == ["0.npz", "1.npz", "1.npz"]
    assert len(load_dataset([out])) == 20 + 40 + 20 + 20 + 30 + 20
    # Without an index everything is read.
    (out / "index.json").unlink()
    reads.clear()
    ingest(source, out)
    assert len(reads) >= 6 and len(load_dataset([out])) == 150


def test_new_dataset_links_unchanged_files_of_the_earlier_one(tmp_path, reads, minari_set):
    source = tmp_path / "in"
    for seed in range(2):
        save_demonstration(source / f"{seed}.npz", make_demo(seed=seed))
    shutil.move(minari_set("set", make_demo(seed=5), make_demo(seed=1)), source / "set")
    ingest(source, tmp_path / "one")
    os.remove(source / "1.npz")
    save_demonstration(source / "2.npz", make_demo(seed=2))
    reads.clear()
    rows = ingest(source, tmp_path / "two", earlier=tmp_path / "one")
    assert reads == ["2.npz"] and all(row.accepted for row in rows)
    assert (tmp_path / "one" / "0.npz").samefile(tmp_path / "two" / "0.npz")
    # As without an earlier dataset: an episode that a removed file held, too, is still there.
    ingest(source, tmp_path / "three")
    assert contents(tmp_path / "two") == contents(tmp_path / "three") and len(contents(tmp_path / "two")) == 4


def test_removed_recordings_are_ingested_again(tmp_path, minari_set):
    source, out = tmp_path / "in", tmp_path / "out"
    save_demonstration(source / "a.npz", make_demo())
    shutil.move(minari_set("set", *(make_demo(seed=seed) for seed in (1, 2, 3))), source / "set")
    ingest(source, out)
    whole = contents(out)
    (out / "a.npz").unlink()
    (out / "set-00001.npz").unlink()
    assert [(row.accepted, row.episodes) for row in ingest(source, out)] == [(True, 1), (True, 1)]
    assert contents(out) == whole
    # Also where the index was made anew meanwhile and knows nothing of it.
    (out / "set-00002.npz").unlink()
    ingest(out, out)
    assert [(row.known, row.episodes) for row in ingest(source, out)] == [(True, 0), (False, 1)]
    assert contents(out) == whole


def test_dataset_grown_in_place_is_reread_once(tmp_path, minari_set, monkeypatch):
    reads, load = [], module.import_minari
    monkeypatch.setattr(module, "import_minari", lambda path: reads.append(path.name) or load(path))
    source = minari_set("set", make_demo())
    ingest(source, tmp_path / "out")
    shutil.rmtree(source)
    minari_set("set", make_demo(), make_demo(seed=1))
    ingest(source, tmp_path / "out")
    reads.clear()
    (row,) = ingest(source, tmp_path / "out")
    assert row.known and not reads and len(contents(tmp_path / "out")) == 2


def test_ingest_follows_no_links_to_folders(tmp_path):
    """They may lead in a circle, and two of them to more places than there is time."""
    source = tmp_path / "in"
    save_demonstration(source / "monday" / "a.npz", make_demo())
    for name in ("back", "again"):
        (source / "monday" / name).symlink_to(source)
    assert [row.file for row in ingest(source, tmp_path / "out")] == ["monday/a.npz"]


def test_names_of_deep_folders_are_shortened(tmp_path):
    source = tmp_path / "in"
    deep = source.joinpath(*["ä" * 60] * 4)
    for seed, name in enumerate(("a.npz", "b.npz")):
        save_demonstration(deep / name, make_demo(seed=seed))
    assert all(row.accepted for row in ingest(source, tmp_path / "out"))
    names = [row["file"] for row in read_index(tmp_path / "out")["files"]]
    assert [name[-6:] for name in names] == ["-a.npz", "-b.npz"] and max(len(name.encode()) for name in names) < 200


def test_broken_dataset_file_is_reported_and_skipped(tmp_path):
    save_demonstration(tmp_path / "in" / "a.npz", make_demo())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "broken.npz").write_bytes(b"nothing")
    rows = ingest(tmp_path / "in", tmp_path / "out")
    assert [(row.file, row.accepted) for row in rows] == [("broken.npz", False), ("a.npz", True)]
    assert len(load_dataset([tmp_path / "out"])) == 20


def test_write_fault_is_not_blamed_on_the_recording(tmp_path):
    save_demonstration(tmp_path / "in" / "a.npz", make_demo())
    (tmp_path / "out").write_text("a file")
    with pytest.raises(DemoError, match="cannot be written"):
        ingest(tmp_path / "in", tmp_path / "out")


def test_two_scenes_of_one_name_are_refused(tmp_path):
    coarse = {"scene_hash": "c" * 64, "source_hash": "5" * 64}
    for name, facts in (
        ("a", coarse),
        ("b", coarse | {"scene_hash": "f" * 64}),
        ("c", {}),
        ("d", {"scene_hash": "d" * 64, "source_hash": "6" * 64}),
        ("e", coarse | {"scene": "attic"}),
    ):
        save_demonstration(tmp_path / f"{name}.npz", make_demo(seed=ord(name), **facts))
    rows = ingest(tmp_path, tmp_path)
    assert [row.accepted for row in rows] == [True, True, True, False, True]
    assert "scene_hash" in rows[3].reason and "another scene" in rows[3].reason
    data = load_dataset([tmp_path])
    # One scene, whatever it is called: held out and learned from it cannot be at once.
    assert {episode.scene for episode in data.episodes} == {"room"}
    assert data.scene_hashes["room"] == "c" * 64 and data.sources == {"5" * 64, "f" * 64}


def test_scene_hash_of_the_first_file_identifies_the_scene(tmp_path):
    for name, facts in (("a", {}), ("b", {"scene_hash": "b" * 64}), ("c", {"scene_hash": "c" * 64})):
        save_demonstration(tmp_path / f"{name}.npz", make_demo(seed=ord(name), **facts))
    assert [row.accepted for row in ingest(tmp_path, tmp_path)] == [True, True, False]


def test_duplicate_content_is_read_once(tmp_path, caplog):
    """Of two alike, one could be held out and the other learned from."""
    save_demonstration(tmp_path / "a" / "0.npz", make_demo())
    ingest(tmp_path / "a", tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    alone = load_dataset([tmp_path / "a"])
    for folders in ([tmp_path / "a", tmp_path / "a"], [tmp_path / "a", tmp_path / "b"]):
        caplog.clear()
        data = load_dataset(folders)
        assert len(data) == 20 and data.content_hash == alone.content_hash
        assert "the same as" in caplog.text and str(folders[1] / "0.npz") in caplog.text
        assert "not in its index" not in caplog.text


def test_replaced_file_with_equal_stamp_names_the_remedy(tmp_path):
    path = tmp_path / "0.npz"
    save_demonstration(path, make_demo())
    ingest(tmp_path, tmp_path)
    (row,), time = read_index(tmp_path)["files"], path.stat().st_mtime_ns
    save_demonstration(path, make_demo(seed=1))
    os.utime(path, ns=(time, time))
    write_index(tmp_path, [row | {"stamp": stamp(path)}])  # as one packed to the same size
    ingest(tmp_path, tmp_path)
    with pytest.raises(DemoError, match=f"remove {tmp_path / 'index.json'}, then run `navi demos ingest {tmp_path}`"):
        load_dataset([tmp_path])
    (tmp_path / "index.json").unlink()
    ingest(tmp_path, tmp_path)
    assert len(load_dataset([tmp_path])) == 20


def test_file_changed_during_reading_is_refused(tmp_path, monkeypatch):
    path, save = tmp_path / "in" / "a.npz", module.save_beside
    save_demonstration(path, make_demo())
    save_demonstration(tmp_path / "in" / "b.npz", make_demo(seed=1))

    def replaced(paths, demo, **settings):
        if demo.source == path:
            save_demonstration(path, make_demo(30, seed=2))
        return save(paths, demo, **settings)

    monkeypatch.setattr(module, "save_beside", replaced)
    rows = ingest(tmp_path / "in", tmp_path / "out")
    assert [(row.file, row.accepted) for row in rows] == [("a.npz", False), ("b.npz", True)]
    assert "changed while" in rows[0].reason and len(load_dataset([tmp_path / "out"])) == 20
    monkeypatch.undo()
    ingest(tmp_path / "in", tmp_path / "out")
    assert len(load_dataset([tmp_path / "out"])) == 50


@pytest.mark.parametrize("episodes", [1, 3])
def test_minari_dataset_changed_during_reading_is_refused(tmp_path, minari_set, monkeypatch, episodes):
    source = minari_set("set", make_demo(), make_demo(seed=1))
    other = minari_set("other", *(make_demo(seed=seed) for seed in range(5, 5 + episodes)))
    walk = module._Episodes.__iter__
    walks = itertools.count()

    def replaced(self):
        if next(walks) == 1:
            os.replace(other / "data" / "main_data.hdf5", source / "data" / "main_data.hdf5")
        return walk(self)

    monkeypatch.setattr(module._Episodes, "__iter__", replaced)
    save_demonstration(tmp_path / "in" / "b.npz", make_demo(seed=2))
    shutil.move(source, tmp_path / "in" / "set")
    source = tmp_path / "in" / "set"
    rows = ingest(tmp_path / "in", tmp_path / "out")
    assert [(row.file, row.accepted) for row in rows] == [("b.npz", True), ("set", False)]
    assert "changed while" in rows[1].reason and len(load_dataset([tmp_path / "out"])) == 20
    assert [path.name for path in (tmp_path / "out").glob("*.npz")] == ["b.npz"]


def test_dataset_file_replaced_during_reading_is_reread(tmp_path, monkeypatch):
    path, load = tmp_path / "a.npz", module.load_demonstration
    save_demonstration(path, make_demo())

    def replaced(file):
        demo = load(file)
        save_demonstration(path, make_demo(30, seed=2))
        return demo

    with monkeypatch.context() as patch:
        patch.setattr(module, "load_demonstration", replaced)
        ingest(tmp_path, tmp_path)
    ingest(tmp_path, tmp_path)
    assert len(load_dataset([tmp_path])) == 30


def test_concurrent_saves_use_distinct_names(tmp_path):
    barrier, demos = threading.Barrier(8), [make_demo(seed=seed) for seed in range(8)]

    def save(demo):
        barrier.wait()
        return save_beside((tmp_path / f"{n}.npz" for n in itertools.count()), demo)

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(save, demos))
    assert [load_demonstration(path).content_hash() for path in paths] == [demo.content_hash() for demo in demos]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n}.npz" for n in range(8)]


def test_saves_without_hard_links_use_distinct_names(tmp_path, monkeypatch):
    def none(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", none)
    names = [tmp_path / "a.npz", tmp_path / "b.npz"]
    assert [save_beside(names, make_demo(seed=seed)) for seed in range(2)] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_unindexed_recordings_are_warned_of(tmp_path, caplog):
    save_demonstration(tmp_path / "0.npz", make_demo())
    ingest(tmp_path, tmp_path)
    with caplog.at_level(logging.WARNING, "navi.demos"):
        load_dataset([tmp_path])
        assert not caplog.records
        save_demonstration(tmp_path / "copied.npz", make_demo(seed=1))
        assert len(load_dataset([tmp_path])) == 20
    assert "copied.npz" in caplog.text and "navi demos ingest" in caplog.text


def test_dataset_reads_one_file_at_a_time(tmp_path):
    for seed in range(3):
        save_demonstration(tmp_path / f"{seed}.npz", make_demo(1_000, seed=seed))
    ingest(tmp_path, tmp_path)
    one = make_demo(1_000).observations.nbytes
    tracemalloc.start()
    try:
        data = load_dataset([tmp_path])
        held = sum(array.nbytes for array in (data.depth, data.semantic, data.valid, data.actions, data.flown))
        assert tracemalloc.get_traced_memory()[1] < held + 2.2 * one
    finally:
        tracemalloc.stop()
    assert np.isfinite(data.depth).all()


def test_repeated_ingest_command_succeeds_and_a_broken_file_fails(tmp_path):
    save_demonstration(tmp_path / "in" / "a.npz", make_demo())
    command = ["demos", "ingest", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--json"]
    runs = [CliRunner().invoke(build_app(), command) for _ in range(2)]
    assert [run.exit_code for run in runs] == [0, 0]
    assert "the same content as a.npz" in runs[1].stdout
    (tmp_path / "in" / "b.npz").write_bytes(b"nothing")
    assert CliRunner().invoke(build_app(), command).exit_code == 1
