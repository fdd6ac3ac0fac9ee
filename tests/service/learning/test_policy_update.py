"""Learned weights outlive the service as a version of the registry, a child of the served one."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import torch

from navi_core.config import ActorConfig, ContinuousTrainingConfig
from navi_core.models import Registry, load_checkpoint, trained_on
from navi_core.record import navi_home
from navi_core.service.learning import policy_update
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.learning.policy_update import LearnedWeights, recover_learned
from navi_core.service.policies.served_model import load_model
from tests.models.conftest import make_checkpoint  # noqa: F401 - a fixture
from tests.service.conftest import SMALL, until

FAST = ContinuousTrainingConfig(training_interval=0.02, batch_size=16, min_batch_size=4)


@pytest.fixture
def served(make_checkpoint, tmp_path, monkeypatch):  # noqa: F811
    """A registry with one version, and that version ready to be served."""
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    registry = Registry(tmp_path / "models")
    registry.register(make_checkpoint("p.pt"))
    return registry, load_model("v001", ActorConfig(sample=True, follow=None))


def test_learned_weights_are_registered_at_the_end_and_at_a_takeover(stage, served) -> None:
    registry, model = served
    ready = []
    learning = FlightLearning(model, FAST, None, registry=registry)
    size = {"azimuth_bins": model.runner.config.azimuth_bins, "elevation_bins": model.runner.config.elevation_bins}
    server = stage.environment(SMALL.model_copy(update=size), sessions=2)
    actor = stage.actor(server, model, learning=learning, sample=True, successor=lambda: ready.pop() if ready else None)
    until(lambda: learning.trainer.serving.version >= 2)
    assert [entry.version for entry in registry.list()] == ["v001"]
    ready.append(load_model("v001", ActorConfig(sample=True, follow=None)))
    until(lambda: len(registry.list()) == 2)
    adopted = learning.trainer.model_version
    until(lambda: learning.trainer.serving.version >= adopted + 3)
    actor.stop()
    actor.thread.join(10)
    first, second, third = registry.list()
    assert second.parents == third.parents == ("v001",) and second.weights_hash != third.weights_hash
    assert third.tags == ("inference",) and third.training_source == "inference" and third.step_id > first.step_id
    assert registry.aliases() == {"latest": "v001"}
    rows = [json.loads(line) for file in (navi_home() / "outbox").glob("*-models.ndjson") for line in file.open()]
    assert {row["version"] for row in rows if "version" in row} == {"v001", "v002", "v003"}
    weights = learning.trainer.serving.policy.state_dict()
    kept = load_checkpoint(third.path)
    assert all(torch.equal(value, weights[name]) for name, value in kept.policy_state.items())
    assert kept.normalisers.keys() == load_checkpoint(first.path).normalisers.keys()
    assert load_model("v003", ActorConfig(follow=None)).name == "v003"


def test_registration_needs_updates_and_tolerates_errors(served, caplog) -> None:
    registry, model = served
    learning = FlightLearning(model, FAST, None, registry=registry)
    learning.close()
    assert len(registry.list()) == 1
    learning = FlightLearning(model, FAST, None, registry=registry)
    learning.trainer.admission.admit(1, learning.trainer.serving.policy)
    (registry.path / "registry.json").write_text("[]")
    learning.close()
    assert "cannot be registered" in caplog.text and "Traceback" not in caplog.text


def killed(weights: LearnedWeights) -> None:
    """Leave the weights as a kill does: the lock goes, the files stay."""
    os.close(weights._descriptor)


def test_weights_of_a_killed_service_are_registered_by_the_next(stage, served, monkeypatch, caplog) -> None:
    registry, model = served
    monkeypatch.setattr(policy_update, "_SAVE_SECONDS", 0.0)
    learning = FlightLearning(model, FAST, None, registry=registry)
    size = {"azimuth_bins": model.runner.config.azimuth_bins, "elevation_bins": model.runner.config.elevation_bins}
    server = stage.environment(SMALL.model_copy(update=size), sessions=2)
    actor = stage.actor(server, model, learning=learning, sample=True)
    until(lambda: learning._learned._saved >= 2)
    # While it lives, its weights are its own.
    assert recover_learned(registry) == [] and len(registry.list()) == 1
    with monkeypatch.context() as kill:
        kill.setattr(FlightLearning, "_register_learned", lambda self: killed(self._learned))
        actor.stop()
        actor.thread.join(10)
    assert len(registry.list()) == 1
    again = FlightLearning(load_model("v001", ActorConfig(sample=True, follow=None)), FAST, None, registry=registry)
    first, second = registry.list()
    assert "weights of killed services are registered: v002" in caplog.text
    assert second.parents == ("v001",) and second.tags == ("inference",) and second.training_source == "inference"
    assert "by a service that was killed" in second.notes and second.weights_hash != first.weights_hash
    again.close()
    assert len(registry.list()) == 2 and list((registry.path / "learned").iterdir()) == []


def test_learned_file_follows_the_serving_version(served, monkeypatch) -> None:
    registry, model = served
    policy = model.runner.policy
    weights = LearnedWeights(registry, model, "service-x", 3)
    weights.save(4, policy, 10)
    assert not weights._file.exists()  # not yet a minute
    monkeypatch.setattr(policy_update, "_SAVE_SECONDS", 0.0)
    weights._next = 0.0
    for number, there in ((2, False), (4, True), (3, False), (5, True), (2, True)):
        weights.save(number, policy, 10)
        assert weights._file.exists() == there
    monkeypatch.setattr(policy_update, "_SAVE_SECONDS", 60.0)
    weights._next, written = 0.0, []
    monkeypatch.setattr(LearnedWeights, "_write", lambda self, policy, decisions: written.append(decisions))
    for number in range(6, 12):
        weights.save(number, policy, number)
    assert written == [6]  # the others within the minute
    assert weights.register(3, policy, 10) is None and list((registry.path / "learned").iterdir()) == []
    weights.save(16, policy, 10)
    assert not weights._file.exists() and weights.register(16, policy, 10) is None and len(registry.list()) == 1


def test_read_only_registry_is_reported_and_foreign_claims_stay(served, caplog) -> None:
    registry, model = served
    folder = registry.path / "learned"
    folder.mkdir()
    for name, text in (("a", "[]"), ("b", "{"), ("c", '{"parents": ["v009"]}'), ("e", '{"parents": null}')):
        (folder / f"{name}.json").write_text(text)
        (folder / f"{name}.pt").write_bytes(b"none")
    assert recover_learned(registry) == [] and caplog.text.count("cannot be registered now") == 4
    assert len(list(folder.iterdir())) == 8
    (folder / "d.json").write_text("")  # killed before it learned anything
    assert recover_learned(registry) == [] and not (folder / "d.json").exists()
    elsewhere = SimpleNamespace(path=registry.path / "registry.json", list=registry.list)
    learning = FlightLearning(model, FAST, None, registry=elsewhere)
    assert "a kill loses the learned weights" in caplog.text
    learning.close()


def test_gate_scenes_are_recorded_as_training_scenes(served, box_scene) -> None:
    registry, model = served
    learned = LearnedWeights(registry, model, "service-a", 0, [box_scene])
    version = learned.register(1, model.runner.policy, 100)
    seen = trained_on(load_checkpoint(registry.resolve(version).path))
    assert seen == trained_on(model.checkpoint) | {box_scene.content_hash(), box_scene.source_hash}
