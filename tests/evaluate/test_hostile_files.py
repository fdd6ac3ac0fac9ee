"""Edited evaluation files, and paths where none can be saved."""

import copy
import json

import pytest

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate import EvalResult, compare, evaluate


@pytest.fixture(scope="module")
def saved(box_room, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "random.json"
    return evaluate("random", [box_room], EvalConfig(starts=2, max_steps=3)).save(path)


BREAKS = {
    "no episodes": lambda d: d.update(episodes=[]),
    "an episode without a start": lambda d: d["episodes"][1].pop("start"),
    "an episode without a pose": lambda d: d["episodes"][0].pop("start_x"),
    "a scene that is a number": lambda d: d["episodes"][0].update(scene=3),
    "episodes that are text": lambda d: d.update(episodes="x"),
    "a summary without the coverage": lambda d: d["summary"].pop("c_vis_auc"),
    "a summary of text": lambda d: d["summary"].update(scenes="many"),
    "a config of text": lambda d: d.update(config="x"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_edited_evaluation_is_refused_when_it_is_loaded(saved, tmp_path, name):
    document = copy.deepcopy(json.loads(saved.read_text()))
    BREAKS[name](document)
    file = tmp_path / "edited.json"
    file.write_text(json.dumps(document))
    with pytest.raises((EvaluationError, ValueError), match=r"edited\.json|the configuration") as caught:
        EvalResult.load(file)
    assert "Error" not in str(caught.value)


def test_deeply_nested_json_is_refused(tmp_path):
    file = tmp_path / "deep.json"
    file.write_text("[" * 200_000)
    with pytest.raises(EvaluationError, match=r"deep\.json is not JSON"):
        EvalResult.load(file)


def test_text_column_is_refused_as_a_metric(saved):
    result = EvalResult.load(saved)
    with pytest.raises(EvaluationError, match="not a number"):
        compare(result, result, "scene")


def test_saving_to_a_device_is_refused(saved, tmp_path):
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    with pytest.raises(EvaluationError, match="no regular file"):
        EvalResult.load(saved).save(device)
    assert device.is_symlink()


def test_invalid_output_path_is_named(saved, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "a.json", tmp_path, tmp_path / ("x" * 300)):
        with pytest.raises(EvaluationError, match="cannot write"):
            EvalResult.load(saved).save(place)
