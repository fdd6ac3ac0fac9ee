"""Corpora: precedence of sources, manifests, splits, and one vocabulary."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from navi_core.config import CompileConfig, CorpusConfig
from navi_core.errors import ConfigError, MeshError, SceneError
from navi_core.scenes import (
    SPLITS,
    SceneSource,
    compile_corpus,
    compile_source,
    discover,
    discover_root,
    generated_sources,
    load_gmdag,
    read_manifest,
    scenes_named,
)
from navi_core.scenes.manifest import Manifest, file_hash, update_manifest

CONFIG = CompileConfig(resolution=32)
OBJ = "o {name}\nv 0 0 0\nv 2 0 0\nv 0 2 0\nv 0 0 2\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n"


def write_obj(path: Path, name: str = "wall") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OBJ.format(name=name))
    return path


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A folder with two datasets of meshes, a compiled file, a hidden folder and a text file."""
    root = tmp_path / "corpus"
    write_obj(root / "flats" / "one.obj", "wall")
    write_obj(root / "flats" / "two.obj", "chair")
    write_obj(root / "halls" / "one.obj", "table")
    write_obj(root / "top.obj")
    write_obj(root / ".cache" / "hidden.obj")
    (root / "README.txt").write_text("no scene")
    (root / "other.gmdag").write_bytes(b"GDAG")
    return root


def names(sources) -> list[str]:
    return [s.name for s in sources]


def test_every_mesh_under_a_root_is_found_with_unique_names(corpus):
    found = discover_root(corpus)
    assert names(found) == ["flats_one.obj", "halls_one.obj", "top", "two"]
    assert [s.dataset for s in found] == ["flats", "halls", "corpus", "flats"]


def test_explicit_scenes_override_every_other_source(corpus, tmp_path, monkeypatch):
    made = tmp_path / "made"
    manifest = compile_corpus(generated_sources({"maze": (0,)}), made, CONFIG)
    mesh = write_obj(tmp_path / "mine.obj")
    environment = tmp_path / "environment"
    write_obj(environment / "from_environment.obj")
    explicit, listed = {"scenes": (str(mesh),)}, {"manifest": str(made / "manifest.json")}
    rooted, families = {"root": str(corpus)}, {"families": {"atrium": (3,)}}
    monkeypatch.setenv("NAVI_SCENES", str(environment))
    assert names(discover(CorpusConfig(**explicit, **listed, **rooted, **families))) == ["mine"]
    assert names(discover(CorpusConfig(**listed, **rooted, **families))) == [manifest.rows[0].name]
    assert names(discover(CorpusConfig(**rooted, **families))) == names(discover_root(corpus))
    assert names(discover(CorpusConfig(**families))) == ["from_environment"]
    monkeypatch.delenv("NAVI_SCENES")
    assert names(discover(CorpusConfig(**families))) == ["atrium_0003"]
    assert names(discover()) == [f"apartment_{i:04d}" for i in range(12)]


def test_scenes_are_named_as_files_folders_families_and_splits(tmp_path, corpus):
    mesh = write_obj(tmp_path / "mine.obj")
    given = (str(mesh), "maze:1,3-4", str(corpus), "maze:3", str(mesh))
    found = [source.name for source in scenes_named(given)]
    assert found == ["mine", "maze_0001", "maze_0003", "maze_0004", *names(discover_root(corpus))]
    assert names(discover(CorpusConfig(scenes=given))) == sorted(found)
    assert [s.seed for s in scenes_named(["rooms-v1:validation"])] == list(SPLITS["validation"])
    for wrong, reported in (
        ("rooms-v1:tset", "test"),
        ("maze:x", "seeds 'x'"),
        ("apartmnt:3", "angled, apartment, atrium, hall, home, maze"),
    ):
        with pytest.raises((ConfigError, SceneError), match=reported):
            scenes_named([wrong])


def test_compiled_scenes_without_a_mesh_are_skipped_with_warning(corpus, caplog):
    (corpus / "halls" / "one-0a1b2c3d.gmdag").write_bytes(b"GDAG")
    discover_root(corpus)
    assert "1 compiled scenes beside its meshes are left out (other.gmdag)" in caplog.text


def test_a_folder_of_compiled_scenes_is_a_corpus(tmp_path):
    for name in ("one", "two"):
        compile_source(SceneSource(name, "x", write_obj(tmp_path / "in" / f"{name}.obj")), tmp_path / "out", CONFIG)
    found = discover(CorpusConfig(scenes=(str(tmp_path / "out"),)))
    assert [s.compiled for s in found] == [True, True] and found == discover_root(tmp_path / "out")
    assert [compile_source(s, tmp_path / "unused", CONFIG).scene.name for s in found] == ["one", "two"]


def test_latest_compilation_of_a_scene_is_used(tmp_path, caplog):
    """Earlier compilations with a wrong axis or unit stay in the folder and are superseded."""
    sources = [SceneSource(name, "x", write_obj(tmp_path / "in" / f"{name}.obj")) for name in ("one", "two")]
    compile_corpus(sources, tmp_path / "out", CONFIG)
    again = compile_corpus(sources[:1], tmp_path / "out", CONFIG.model_copy(update={"unit_scale": 2.0}))
    (first,) = [row.gmdag for row in again.rows if row.name == "one"]
    (tmp_path / "out" / "one.gmdag").write_bytes(first.read_bytes())
    found = discover_root(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.gmdag"))) == 4 and len(found) == 3
    assert first in [source.path for source in found] and "is left out" in caplog.text
    assert first.name in caplog.text
    first.unlink()
    assert len(discover_root(tmp_path / "out")) == 3, "what is gone supersedes nothing"
    (tmp_path / "out" / "manifest.json").write_text("[]")
    assert len(discover_root(tmp_path / "out")) == 3


def test_nested_manifest_selects_the_listed_files(tmp_path):
    source = SceneSource("one", "x", write_obj(tmp_path / "one.obj"))
    out = tmp_path / "out" / "nested"
    (first,) = compile_corpus([source], out, CONFIG).rows
    (again,) = compile_corpus([source], out, CONFIG.model_copy(update={"unit_scale": 2.0})).rows
    assert [one.path for one in discover_root(tmp_path / "out")] == [again.gmdag]
    update_manifest(out / "manifest.json", Manifest((replace(first, name="small"),), {1: "surface"}))
    assert {one.path for one in discover_root(out)} == {first.gmdag, again.gmdag}


def test_a_compiled_file_wins_over_the_mesh_of_the_same_name(tmp_path):
    mesh = write_obj(tmp_path / "flat.obj")
    made = compile_source(SceneSource("flat", "x", mesh), tmp_path / "out", CONFIG)
    gmdag = made.path.rename(tmp_path / "flat.gmdag")
    other = write_obj(tmp_path / "hall.obj")
    found = discover(CorpusConfig(scenes=(str(mesh), str(other), str(gmdag))))
    assert [(s.name, s.compiled) for s in found] == [("flat", True), ("hall", False)]
    loaded = compile_source(found[0], tmp_path / "unused", CONFIG)
    assert loaded.skipped
    assert loaded.path == gmdag
    assert not (tmp_path / "unused").exists()


def test_missing_and_empty_paths_are_named(tmp_path):
    with pytest.raises(SceneError, match=r"gone\.obj: no such file"):
        discover(CorpusConfig(scenes=(str(tmp_path / "gone.obj"),)))
    with pytest.raises(SceneError, match=r"\.gmdag, \.glb"):
        discover(CorpusConfig(scenes=("film.mp4",)))
    with pytest.raises(SceneError, match="no such folder"):
        discover(CorpusConfig(root=str(tmp_path / "none")))
    with pytest.raises(SceneError, match=r"no scene found; searched for \.glb.* and for \.gmdag"):
        discover_root(tmp_path)
    with pytest.raises(ConfigError, match="no scene family 'villa'"):
        generated_sources({"villa": (0,)})
    with pytest.raises(SceneError, match="empty"):
        generated_sources({})


def test_manifest_records_every_scene_and_round_trips(corpus, tmp_path):
    out = tmp_path / "out"
    reported = []
    made = compile_corpus(
        discover_root(corpus),
        out,
        CONFIG,
        progress=lambda name, share: reported.append(share),
        judge=lambda scene: "PASS",
    )
    read = read_manifest(out / "manifest.json")
    assert read.vocabulary == made.vocabulary == {1: "surface", 2: "chair", 3: "table", 4: "wall"}
    assert [r.name for r in read.rows] == names(discover_root(corpus))
    for row in read.rows:
        assert row.gmdag.is_file()
        assert row.gmdag_hash == file_hash(row.gmdag)
        scene = load_gmdag(row.gmdag)
        assert (row.source_hash, row.resolution, row.verdict) == (scene.source_hash, 32, "PASS")
        assert scene.name == row.name
    assert json.loads((out / "vocabulary.json").read_text()) == {
        "1": "surface",
        "2": "chair",
        "3": "table",
        "4": "wall",
    }
    assert reported == sorted(reported)
    # The folder may move: its own paths are relative.
    moved = out.rename(tmp_path / "moved")
    assert len(discover(CorpusConfig(manifest=str(moved / "manifest.json")))) == 4


def test_compiling_more_scenes_keeps_the_listed_ones(tmp_path):
    compile_corpus(generated_sources({"maze": (0, 1)}), tmp_path, CONFIG)
    second = compile_corpus(generated_sources({"maze": (1, 2)}), tmp_path, CONFIG)
    assert [r.name for r in second.rows] == ["maze_0000", "maze_0001", "maze_0002"]
    second.rows[0].gmdag.unlink()
    third = compile_corpus(generated_sources({"maze": (2,)}), tmp_path, CONFIG)
    assert [r.name for r in third.rows] == ["maze_0001", "maze_0002"]


def test_failed_scenes_of_a_manifest_never_reach_training(tmp_path):
    verdicts = iter(["PASS", "FAIL", "MARGINAL"])
    compile_corpus(generated_sources({"maze": (0, 1, 2)}), tmp_path, CONFIG, judge=lambda scene: next(verdicts))
    assert names(discover(CorpusConfig(manifest=str(tmp_path / "manifest.json")))) == ["maze_0000", "maze_0002"]


def change(document: dict, **fields) -> str:
    return json.dumps(document | fields)


def test_broken_manifests_are_refused_by_reason(tmp_path):
    compile_corpus(generated_sources({"maze": (0,)}), tmp_path, CONFIG)
    file = tmp_path / "manifest.json"
    good = json.loads(file.read_text())
    row = good["scenes"][0]
    short = {name: value for name, value in row.items() if name != "dataset"}
    table = {
        "cannot be read": "{",
        "not a corpus manifest": "[]",
        "version 9": change(good, version=9),
        "scenes = {}: expected a list": change(good, scenes={}),
        "scenes.0 = 1: ": change(good, scenes=[1]),
        "scenes.0.dataset = .*: expected a value": change(good, scenes=[short]),
        "scenes.0.colour = 'red'": change(good, scenes=[row | {"colour": "red"}]),
        "scenes.0.resolution = '32': expected a whole number": change(good, scenes=[row | {"resolution": "32"}]),
        "occurs more than once": change(good, scenes=[row, row]),
        "vocabulary.one": change(good, vocabulary={"one": "wall"}),
        "does not exist; compile the corpus again": change(good, scenes=[row | {"gmdag": "lost.gmdag"}]),
    }
    for reason, text in table.items():
        file.write_text(text)
        with pytest.raises(SceneError, match=reason):
            discover(CorpusConfig(manifest=str(file)))
    with pytest.raises(SceneError, match="no such manifest"):
        discover(CorpusConfig(manifest=str(tmp_path / "none.json")))


def test_broken_scene_stops_compilation_but_keeps_earlier_ones(corpus, tmp_path):
    (corpus / "halls" / "one.obj").write_text("v 0 0 0\n")
    out = tmp_path / "out"
    with pytest.raises(MeshError, match=r"halls/one\.obj"):
        compile_corpus(discover_root(corpus), out, CONFIG)
    assert [p.name.split("-")[0] for p in out.glob("*.gmdag")] == ["flats_one.obj"]
    assert not (out / "manifest.json").exists()


def test_two_sources_of_one_name_are_refused_before_anything_is_compiled(tmp_path):
    one, two = (write_obj(tmp_path / folder / "flat.obj") for folder in ("a", "b"))
    with pytest.raises(SceneError, match=r"name 'flat' belongs to .*a/flat\.obj and .*b/flat\.obj"):
        compile_corpus([SceneSource("flat", "x", one), SceneSource("flat", "x", two)], tmp_path / "out", CONFIG)
    assert not (tmp_path / "out").exists()


def test_a_broken_manifest_is_reported_before_compiling(corpus, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text("{")
    with pytest.raises(SceneError, match="manifest cannot be read"):
        compile_corpus(discover_root(corpus), out, CONFIG)
    assert list(out.glob("*.gmdag")) == []


def test_concurrent_manifest_writers_keep_all_rows(tmp_path):
    made = compile_corpus(generated_sources({"maze": (0,)}), tmp_path, CompileConfig(resolution=16))
    path = tmp_path / "manifest.json"

    def write(number: int) -> None:
        update_manifest(path, Manifest((replace(made.rows[0], name=f"maze_{number:04d}"),), made.vocabulary))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(1, 25)))
    assert len(read_manifest(path).rows) == 25


def test_manifest_with_a_read_only_lock_can_be_written(tmp_path, monkeypatch):
    path, opens = tmp_path / "manifest.json", os.open
    update_manifest(path, Manifest((), {2: "wall"}))

    def refused(name, flags, *mode):
        if str(name).endswith(".lock") and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied", str(name))
        return opens(name, flags, *mode)

    monkeypatch.setattr(os, "access", lambda name, mode: mode != os.W_OK)
    monkeypatch.setattr(os, "open", refused)
    assert set(update_manifest(path, Manifest((), {2: "door"})).vocabulary.values()) >= {"wall", "door"}
