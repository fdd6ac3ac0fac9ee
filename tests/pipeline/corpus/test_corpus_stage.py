"""From sources to a corpus through Dagster: partitions, reuse by content, gates."""

import json

import dagster as dg
import pytest

from navi_core.config import CompileConfig, EvalConfig
from navi_core.errors import SceneError
from navi_core.evaluate import build_course
from navi_core.scenes import compile_to_file, load_gmdag
from navi_pipeline.definitions import defs
from navi_pipeline.defs.corpus import corpus_is_split_by_scene
from navi_pipeline.lib.corpus import scenes as compiled
from navi_pipeline.lib.corpus.scenes import (
    compile_source,
    corpus_path,
    plan_scenes,
    read_corpus,
    scene_card,
    scene_paths,
    unchanged,
)
from navi_pipeline.lib.records import pipeline_folder, read_document, write_document
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.empty_warehouse import start_warehouse

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
COUNTS = {"train": 1, "validation": 1, "test": 1}

BOX = """o crate
v 0 0 0
v 6 0 0
v 6 0 5
v 0 0 5
v 0 3 0
v 6 3 0
v 6 3 5
v 0 3 5
f 1 2 3 4
f 5 6 7 8
f 1 2 6 5
f 2 3 7 6
f 3 4 8 7
f 4 1 5 8
"""


def run(job, instance, ops=None, **kw):
    config = QUIET | {"ops": ops or {}}
    return defs().resolve_job_def(job).execute_in_process(instance=instance, run_config=config, **kw)


def compile_scenes(instance, ops=None, **tags):
    """Compile a partition, or a range of partitions, as the asset's page does."""
    job, keys = defs().resolve_implicit_global_asset_job_def(), [dg.AssetKey("compiled_scene")]
    config = QUIET | {"ops": ops or {}}
    tags = {f"dagster/{name}": value for name, value in tags.items()}
    return job.execute_in_process(
        instance=instance, run_config=config, asset_selection=keys, tags=tags, raise_on_error=False
    )


def materializations(result):
    """Return the scenes' materializations by partition, and the others by asset."""
    made = [event.materialization for event in result.get_asset_materialization_events()]
    return {one.partition or one.asset_key.to_user_string(): one for one in made}


def version(materialization):
    return materialization.tags["dagster/data_version"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """The stage run twice: the results of both passes."""
    root = tmp_path_factory.mktemp("stage")
    (root / "meshes").mkdir()
    (root / "meshes" / "my box.obj").write_text(BOX)
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setenv("NAVI_HOME", str(start_warehouse(root / "home")))
        patch.setenv("NAVI_SCENES", str(root / "meshes"))
        passes = []
        for _ in range(2):
            sources = run("sources_job", instance, ops={"scene_sources": {"config": COUNTS}})
            passes.append((sources, run("corpus_job", instance)))
        passes.append(set(instance.get_materialized_partitions(dg.AssetKey("compiled_scene"))))
    return root / "home", passes


@pytest.fixture(autouse=True)
def passes(stage, monkeypatch):
    home, both = stage
    monkeypatch.setenv("NAVI_HOME", str(home))
    return both


MINE = "my_box"


def test_planned_scenes_are_partitions_and_custom_mesh_is_external(passes):
    assert passes[2] == {"apartment_0000", "apartment_5000", "apartment_9000", MINE}
    assert {row["name"]: row["split"] for row in read_corpus()} == {
        "apartment_0000": "train",
        "apartment_5000": "validation",
        "apartment_9000": "test",
        MINE: "external",
    }
    assert len(scene_paths("train")) == 1 and scene_paths("external")[0].exists()


def test_scene_materialization_has_verdict_map_and_data_version(passes):
    made = materializations(passes[0][1])["apartment_0000"]
    assert made.metadata["verdict"].value == "PASS" and made.metadata["triangles"].value > 100
    assert made.metadata["map"].value.startswith("![apartment_0000](data:image/png;base64,")
    assert len(version(made)) == 16


def test_scene_quality_lists_all_scenes_in_one_table(passes):
    quality = next(
        e.materialization
        for e in passes[0][1].get_asset_materialization_events()
        if e.materialization.asset_key.to_user_string() == "scene_quality"
    )
    assert quality.metadata["scenes"].value == 4 and "data:image/svg+xml;base64," in quality.metadata["picture"].value
    assert f"| {MINE} | external |" in quality.metadata["table"].value


def test_each_scene_is_reported_once_and_unchanged_ones_are_not(passes):
    first, second = (materializations(made) for _, made in passes[:2])
    assert passes[2] < set(first) and not passes[2] & set(second)
    counts = ("scenes", "compiled", "unchanged", "failed")
    for made, numbers in ((first, (4, 4, 0, 0)), (second, (4, 0, 4, 0))):
        assert tuple(made["compiled_scene"].metadata[name].value for name in counts) == numbers
    assert version(first["corpus"]) == version(second["corpus"])


@pytest.mark.slow
def test_a_run_over_a_range_reports_what_it_compiled(passes, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path)))
    with dg.DagsterInstance.ephemeral() as instance:
        assert run("sources_job", instance, ops={"scene_sources": {"config": COUNTS}}).success
        first, *_, last = instance.get_dynamic_partitions("scene")
        one = compile_scenes(instance, partition="apartment_0000")
        assert one.success and [c.partition for c in one.get_asset_check_evaluations()] == ["apartment_0000"]
        (tmp_path / "scenes").rename(tmp_path / "away")
        monkeypatch.setattr(compiled, "_floor_plan", lambda field, name: 1 / 0 if "9000" in name else ("", 1.0))
        names = {"asset_partition_range_start": first, "asset_partition_range_end": last}
        failed = compile_scenes(instance, **names)
        assert not failed.success and set(materializations(failed)) == {"apartment_0000", "apartment_5000"}
        monkeypatch.setattr(compiled, "_floor_plan", lambda field, name: ("", 1.0))
        again = compile_scenes(instance, **names)
        assert again.success and "apartment_9000" in materializations(again)
        assert not {"apartment_0000", "apartment_5000"} & set(materializations(again)), "they are done"
        assert {c.partition for c in again.get_asset_check_evaluations()} == set(materializations(again))


def test_asset_checks_of_the_stage_pass(passes):
    checks = passes[0][1].get_asset_check_evaluations()
    assert {c.check_name for c in checks} == {"corpus_is_split_by_scene", "most_scenes_pass", "spawn_verdict"}
    assert {c.partition for c in checks if c.check_name == "spawn_verdict"} == passes[2]
    assert all(c.passed for c in checks)


def test_scenes_are_recorded_once(passes):
    warehouse = Warehouse()
    warehouse.ingest()
    rows = warehouse.query("select name, split, verdict, hardware, content_hash from scenes order by name")
    assert len(rows) == 4 and rows["hardware"].notna().all() and rows["content_hash"].str.len().eq(64).all()


def test_scene_in_two_splits_fails_the_split_check(passes):
    text = corpus_path().read_text()
    document = json.loads(text)
    document["scenes"].append(document["scenes"][0] | {"name": "again", "split": "test"})
    corpus_path().write_text(json.dumps(document))
    try:
        outcome = corpus_is_split_by_scene()
    finally:
        corpus_path().write_text(text)
    assert not outcome.passed and outcome.metadata["in_two_splits"].value == 1


def test_unplanned_partition_error_counts_planned_scenes(passes):
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("scene", ["nowhere"])
        result = compile_scenes(instance, partition="nowhere")
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    assert "not among the 4 planned" in failure.user_failure_data.description


def test_a_missing_scene_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_SCENES", str(tmp_path / "none"))
    with pytest.raises(SceneError, match="NAVI_SCENES"):
        plan_scenes("apartment", {"train": 1})


def test_meshes_with_the_same_file_name_are_separate_scenes(tmp_path, monkeypatch):
    for room, size in (("a", 6), ("b", 7)):
        (tmp_path / "scans" / room).mkdir(parents=True)
        (tmp_path / "scans" / room / "scan.obj").write_text(BOX.replace("6", str(size)))
    monkeypatch.setenv("NAVI_SCENES", str(tmp_path / "scans"))
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path / "home")))
    config = CompileConfig(resolution=64)
    planned = plan_scenes("apartment", {})
    rows = [compile_source(source, config) for source in planned]
    scenes = [load_gmdag(row["gmdag"]) for row in rows]
    assert [scene.name for scene in scenes] == [row["name"] for row in rows] == ["a_scan.obj", "b_scan.obj"]
    assert len(build_course(scenes, EvalConfig(starts=1)).scene_hashes) == 2
    assert all(unchanged(source, config) for source in planned)


def one_scan(folder, monkeypatch):
    """Plan one mesh of the user's; return it with how to compile it."""
    (folder / "scan.obj").write_text(BOX)
    monkeypatch.setenv("NAVI_SCENES", str(folder))
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(folder / "home")))
    (planned,) = plan_scenes("apartment", {})
    return planned, CompileConfig(resolution=64)


def test_scene_compiled_under_another_name_is_recompiled(tmp_path, monkeypatch):
    planned, config = one_scan(tmp_path, monkeypatch)
    row = compile_source(planned, config)
    other = compile_to_file(tmp_path / "scan.obj", tmp_path / "home" / "scenes", config, name="elsewhere")
    card = pipeline_folder() / "compiled" / "scan.json"
    write_document(card, read_document(card, made_by="x") | {"gmdag": str(other.path)})
    assert not unchanged(planned, config)
    assert compile_source(planned, config)["gmdag"] == row["gmdag"] and unchanged(planned, config)


def test_scene_card_of_older_code_is_due_and_recomputed(tmp_path, monkeypatch):
    planned, config = one_scan(tmp_path, monkeypatch)
    with monkeypatch.context() as older:
        older.setattr(compiled, "_CARD", "1")
        area = compile_source(planned, config)["floor_area_m2"]
        card = pipeline_folder() / "compiled" / "scan.json"
        write_document(card, read_document(card, made_by="x") | {"floor_area_m2": 2 * area})
        assert unchanged(planned, config)
    assert not unchanged(planned, config)
    row = compile_source(planned, config)
    assert row["skipped"] and row["floor_area_m2"] == area and unchanged(planned, config)


@pytest.mark.slow
def test_non_ascii_scene_names_survive_partitions_files_and_sql(tmp_path, monkeypatch):
    (tmp_path / "meshes").mkdir()
    monkeypatch.setenv("NAVI_SCENES", str(tmp_path / "meshes"))
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path / "home")))
    config = {"compiled_scene": {"config": {"resolution": 64}}}
    with dg.DagsterInstance.ephemeral() as instance:
        for number, name in enumerate(("寝室", "台所", "Büro O'Brien 1"), start=6):
            (tmp_path / "meshes" / f"{name}.obj").write_text(BOX.replace("6", str(number)))
            assert run("sources_job", instance, ops={"scene_sources": {"config": COUNTS}}).success
            names = set(instance.get_dynamic_partitions("scene")) - {f"apartment_{n}000" for n in (0, 5, 9)}
        assert len(names) == 3 and {"寝室", "台所"} < names
        made = {name: compile_scenes(instance, config, partition=name) for name in sorted(names)}
    assert all(materializations(result)[name].metadata["map"].value for name, result in made.items())
    rows = {name: scene_card(name) for name in names}
    assert len({row["content_hash"] for row in rows.values()}) == 3
    assert all(load_gmdag(row["gmdag"]).name == name for name, row in rows.items())
    warehouse = Warehouse()
    warehouse.ingest()
    found = warehouse.query("select name, gmdag from scenes where name = ? or name = '台所'", [min(names)])
    assert set(found["name"]) == {min(names), "台所"} and found["gmdag"].str.contains("台所").any()
