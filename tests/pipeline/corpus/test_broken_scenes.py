"""Unreadable scenes: left out of the corpus with their reasons, while the others stay."""

import dagster as dg
import pytest

from navi_core.config import CompileConfig
from navi_core.errors import RecordError, SceneError, SceneTooLargeError
from navi_core.scenes import compiler
from navi_pipeline.lib.corpus.scenes import (
    as_rows,
    compile_source,
    corpus_rows,
    plan_path,
    plan_scenes,
    read_corpus,
    unchanged,
)
from navi_pipeline.lib.records import write_document
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.corpus.test_corpus_stage import BOX, COUNTS, compile_scenes, materializations, run
from tests.pipeline.empty_warehouse import start_warehouse

CONFIG = CompileConfig(resolution=64)
JUNK = b"glTF\x02\0\0\0"


@pytest.fixture
def meshes(tmp_path, monkeypatch):
    folder = tmp_path / "meshes"
    folder.mkdir()
    monkeypatch.setenv("NAVI_SCENES", str(folder))
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path / "home")))
    return folder


def plan():
    sources = {source.name: source for source in plan_scenes("apartment", {})}
    write_document(plan_path(), {"sources": as_rows(list(sources.values()))})
    return sources


@pytest.mark.slow
def test_corpus_leaves_out_unreadable_meshes_with_reasons(meshes):
    (meshes / "good.obj").write_text(BOX)
    (meshes / "truncated.glb").write_bytes(JUNK)
    (meshes / "empty.obj").touch()
    (meshes / "dangling.glb").symlink_to(meshes / "nowhere.glb")
    (meshes / "circle.glb").symlink_to(meshes / "circle.glb")
    broken = {"truncated", "empty", "dangling", "circle"}
    with dg.DagsterInstance.ephemeral() as instance:
        assert run("sources_job", instance, ops={"scene_sources": {"config": COUNTS}}).success
        names = list(instance.get_dynamic_partitions("scene"))
        gathered, again = (run("corpus_job", instance) for _ in range(2))
        made = materializations(compile_scenes(instance, partition="truncated"))["truncated"].metadata
    assert broken < set(names) and gathered.success
    assert {row["name"] for row in read_corpus()} == set(names) - broken
    assert not broken & set(materializations(gathered)), "a scene without a file is not done"
    counts = [materializations(each)["compiled_scene"].metadata["failed"].value for each in (gathered, again)]
    assert counts == [4, 0], "a broken mesh is not read again until it changes"
    failed = {c.partition for c in gathered.get_asset_check_evaluations() if not c.passed}
    assert failed >= broken
    assert made["verdict"].value == "FAIL" and "truncated.glb" in made["verdict_reason"].value
    corpus = materializations(gathered)["corpus"]
    assert corpus.metadata["left_out"].value == 4 and set(corpus.metadata["left_out_because"].value) == broken
    failed = Warehouse()
    failed.ingest()
    reported = failed.query("select name, extra->>'verdict_reason' as why from scenes where verdict = 'FAIL'")
    assert set(reported["name"]) == broken and reported["why"].str.len().gt(10).all()


def test_mesh_that_becomes_unreadable_is_recompiled_as_failed(meshes):
    (meshes / "house.obj").write_text(BOX)
    compile_source(plan()["house"], CONFIG)
    assert corpus_rows()[0]["verdict"] != "FAIL"
    (meshes / "house.obj").write_bytes(JUNK)
    source = plan()["house"]
    assert not unchanged(source, CONFIG)
    with pytest.raises(RecordError, match=r"as they are planned \(house\)"):
        corpus_rows()
    compile_source(source, CONFIG)
    assert corpus_rows()[0]["verdict"] == "FAIL" and unchanged(source, CONFIG)
    (meshes / "house.obj").write_text(BOX)
    assert not unchanged(plan()["house"], CONFIG)
    assert compile_source(plan()["house"], CONFIG)["verdict"] != "FAIL" and unchanged(plan()["house"], CONFIG)


def test_mesh_broken_after_planning_stays_due(meshes):
    (meshes / "house.obj").write_text(BOX)
    source = plan()["house"]
    (meshes / "house.obj").write_bytes(JUNK)
    assert compile_source(source, CONFIG)["verdict"] == "FAIL" and not unchanged(source, CONFIG)


def test_scene_too_large_for_memory_stays_due(meshes, monkeypatch):
    def full(mesh, config):
        raise SceneTooLargeError("house: needs about 99 GiB")

    (meshes / "house.obj").write_text(BOX)
    source = plan()["house"]
    monkeypatch.setattr(compiler, "check_memory", full)
    assert compile_source(source, CONFIG)["verdict_reason"] == "house: needs about 99 GiB"
    assert corpus_rows()[0]["verdict"] == "FAIL" and not unchanged(source, CONFIG)


def test_full_disk_raises_instead_of_failing_the_mesh(meshes, monkeypatch):
    def full(scene, path):
        raise SceneError(f"{path}: cannot be written: No space left on device")

    (meshes / "house.obj").write_text(BOX)
    monkeypatch.setattr("navi_core.scenes.gmdag.scene.Scene.save", full)
    with pytest.raises(SceneError, match="No space left"):
        compile_source(plan()["house"], CONFIG)
