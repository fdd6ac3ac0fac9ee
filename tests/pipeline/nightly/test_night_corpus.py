"""Scenes of a night: an existing plan is kept; scenes are made only without one."""

import dagster as dg
import pytest

from navi_pipeline.defs.corpus import DEFAULT_SCENES, CompileSettings, scene_sources
from navi_pipeline.defs.resources import resources_of
from navi_pipeline.lib.corpus.scenes import (
    corpus_path,
    due_scenes,
    plan_path,
    plan_scenes,
    plan_settings,
    read_corpus,
    read_plan,
    write_plan,
)
from navi_pipeline.lib.nightly.night import Night, nightly_config
from navi_pipeline.lib.nightly.preflight import preflight

FEW = ["train_scenes=1", "validation_scenes=1", "test_scenes=1", "profile=standard", "fresh=true"]


def corpus_gate(assignments=FEW):
    night = Night(nightly_config(minutes=1, assignments=assignments), None, report=lambda line: None)
    return next(gate for gate in preflight(night)[0] if gate.name == "corpus")


def test_night_compiles_scenes_with_the_settings_of_the_assets():
    assert corpus_gate().passed
    assert {row["resolution"] for row in read_corpus()} == {256}
    config = CompileSettings().compile_config()
    assert due_scenes(list(read_plan()), config) == []
    assert plan_settings() == {"family": "apartment", "train": 1, "validation": 1, "test": 1}


@pytest.mark.parametrize("corpus", ["missing", "broken"])
def test_existing_scene_plan_is_never_replaced(corpus):
    counts = {"train": 2, "validation": 1, "test": 1}
    write_plan(plan_scenes("maze", counts), "maze", counts)
    before = plan_path().read_bytes()
    if corpus == "broken":
        corpus_path().write_text('{"scenes": [')
    gate = corpus_gate()
    assert gate.hard and not gate.passed and "materialize" in gate.detail and "corpus" in gate.detail
    assert plan_path().read_bytes() == before


@pytest.mark.slow
def test_night_interrupted_while_compiling_leaves_no_plan(monkeypatch):
    def interrupted(source, config):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("navi_pipeline.lib.nightly.preflight.compile_source", interrupted)
        with pytest.raises(KeyboardInterrupt):
            corpus_gate()
    assert not plan_path().exists() and corpus_gate().passed


@pytest.mark.slow
def test_chosen_scene_plan_survives_rematerialization():
    """`whole_graph` and `navi pipeline materialize` pass no scene counts, which must not reset the plan."""

    def planned(**chosen):
        config = {"ops": {"scene_sources": {"config": chosen}}}
        assert dg.materialize([scene_sources], instance=instance, resources=resources_of(), run_config=config).success
        return plan_settings()

    with dg.DagsterInstance.ephemeral() as instance:
        mazes = {"family": "maze", "train": 2, "validation": 1, "test": 12}
        assert planned(family="maze", train=2, validation=1) == mazes | {"test": DEFAULT_SCENES["test"]}
        assert planned(test=12) == mazes and planned() == mazes
        # A night's plan has the size of the night and is not a user's choice.
        write_plan(plan_scenes("maze", {"train": 1}), "maze", {"train": 1})
        assert planned(train=1) == DEFAULT_SCENES | {"train": 1}
        # The sensor for new meshes repeats the last plan without making it a choice.
        write_plan(plan_scenes("maze", {"train": 1}), "maze", {"train": 1})
        assert planned(as_last=True) == {"family": "maze", "train": 1, "validation": 0, "test": 0}
        assert planned() == DEFAULT_SCENES
