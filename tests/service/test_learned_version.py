"""What was learned in flight outlives the service: a version of the registry, a child of what was served."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import ActorConfig, ContinuousTrainingConfig
from navi_core.models import Registry, load_checkpoint
from navi_core.service.flight_learning import FlightLearning
from navi_core.service.served_model import load_model
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


def test_what_was_learned_is_registered_where_the_service_ends_and_where_a_champion_takes_over(stage, served) -> None:
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
    weights = learning.trainer.serving.policy.state_dict()
    kept = load_checkpoint(third.path)
    assert all(torch.equal(value, weights[name]) for name, value in kept.policy_state.items())
    assert kept.normalisers.keys() == load_checkpoint(first.path).normalisers.keys()
    assert load_model("v003", ActorConfig(follow=None)).name == "v003"


def test_nothing_learned_is_nothing_kept_and_what_cannot_be_kept_ends_nothing(served, caplog) -> None:
    registry, model = served
    learning = FlightLearning(model, FAST, None, registry=registry)
    learning.close()
    assert len(registry.list()) == 1
    learning = FlightLearning(model, FAST, None, registry=registry)
    learning.trainer.admission.admit(1, learning.trainer.serving.policy)
    (registry.path / "registry.json").write_text("[]")
    learning.close()
    assert "could not be kept" in caplog.text
