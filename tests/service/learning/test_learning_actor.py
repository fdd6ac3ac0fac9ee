"""A service that gates and learns: experiences complete, versions move, everything is recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from navi_core.config import ContinuousTrainingConfig, GateConfig, ShaperConfig
from navi_core.errors import ConfigError
from navi_core.service.gate import RolloutGate
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.learning.policy_update import features_of
from navi_core.service.policies.served_model import ProgramRunner, ServedModel
from navi_core.service.policies.sessions import SessionTable
from navi_core.service.wire import DistanceMatrix, RobotPose, StepResult, TelemetryEvent
from navi_core.service.wire.sockets import Subscriber
from tests.service.conftest import SMALL, TINY, tiny_model, until

FAST = {"training_interval": 0.02, "batch_size": 16, "min_batch_size": 4}


@pytest.fixture
def learning_of(tmp_path):
    def build(gate=None, model=None, **changes) -> FlightLearning:
        return FlightLearning(model or tiny_model(), ContinuousTrainingConfig(**FAST | changes), gate, outbox=tmp_path)

    return build


def rows(folder, table: str) -> list[dict]:
    found = []
    for file in sorted(folder.glob("*.ndjson")):
        head, *lines = file.read_text().splitlines()
        if json.loads(head)["table"] == table:
            found += [json.loads(line) for line in lines]
    return found


def test_a_gated_learning_actor_completes_experiences_and_serves_new_versions(stage, learning_of, tmp_path) -> None:
    gate = RolloutGate(stage.field, SMALL, GateConfig(), capacity=64)
    learning = learning_of(gate)
    server = stage.environment(sessions=4, seed=1)
    actor = stage.actor(server, gate=gate, learning=learning, sample=True)
    reader = Subscriber([actor.publisher.endpoint], ["telemetry_event_v2"])
    until(lambda: learning.trainer.serving.version >= 3 and actor.decisions > 150, 30)
    kinds = {m.event_type: m for m in reader.waiting() if isinstance(m, TelemetryEvent)}
    assert len(kinds["actor.inference.gate"].payload) == 7
    reader.close()
    until(lambda: actor.metrics.as_dict().get("training_serving_version", 0) >= 3)
    assert "\n# TYPE navi_actor_training_updates gauge\nnavi_actor_training_updates " in actor.metrics.text()
    actor.stop()
    actor.thread.join(10)
    status = learning.status()
    assert status["serving_version"] == status["training"]["model_version"] == learning.trainer.serving.version
    assert status["training"]["errors"] == 0 and status["training"]["model_version"] >= 3
    assert status["training"]["lifetime_gate_agreement"] > 0.8
    assert not learning.trainer.is_running
    completed = rows(tmp_path, "service_experiences")
    # Every completed experience is recorded; one decision of each drone may have been under way.
    sent = actor.metrics.counter("gate_send_total")
    assert sent - 4 <= len(completed) <= sent and learning.buffer.get_stats()["completed_count"] == len(completed)
    # What was flown slower is learned from as it was drawn: it was not sent, and a collision was expected.
    slowed = [row for row in completed if not row["gate_send"]]
    assert slowed and 0 <= actor.metrics.counter("gate_slowed_total") - len(slowed) <= 4
    flown = {row["model_version"] for row in completed}
    assert 0 in flown and len(flown) > 1
    versions = rows(tmp_path, "service_versions")
    assert [row["model_version"] for row in versions] == list(range(1, status["training"]["model_version"] + 1))
    assert {row["fate"] for row in versions} == {"admitted"}


@pytest.mark.parametrize(("train", "multiplier"), [(False, 0.5), (True, 0.5), (True, 0.125)])
def test_waiting_motions_are_learned_only_with_train_on_wait(stage, learning_of, caplog, train, multiplier) -> None:
    gate = RolloutGate(stage.field, SMALL, GateConfig(threshold=1e6, slower=()), capacity=64)  # everything waits
    learning = learning_of(gate, train_on_wait=train, wait_reward_multiplier=multiplier)
    assert not caplog.records
    actor = stage.actor(stage.environment(sessions=2), gate=gate, learning=learning, sample=True)
    until(lambda: actor.decisions > 40, 20)
    assert actor.metrics.counter("gate_send_total") == 0
    stats = learning.buffer.get_stats()
    assert (stats["completed_count"] > 20) == train
    if train:
        sample = learning.buffer.sample(10).rows
        assert (abs(sample["actual"] - multiplier * sample["expected"]) < 1e-6).all()


def test_train_on_wait_behind_the_default_gate_warns_that_motions_rarely_wait(stage, learning_of, caplog) -> None:
    learning_of(RolloutGate(stage.field, SMALL, GateConfig()), train_on_wait=True)
    assert "--set gate.slower=[]" in caplog.text


@pytest.mark.parametrize("gated", [False, True])
def test_recorded_effective_reward_follows_the_settings(stage, learning_of, tmp_path, gated: bool) -> None:
    gate = RolloutGate(stage.field, SMALL, GateConfig(), capacity=64) if gated else None
    learning = learning_of(gate, simulation_reward_weight=0.9, actual_reward_weight=0.1)
    actor = stage.actor(stage.environment(sessions=2), gate=gate, learning=learning, sample=True)
    until(lambda: actor.decisions > 20)
    actor.stop()
    actor.thread.join(10)
    found = rows(tmp_path, "service_experiences")
    assert found
    for row in found:
        blend = 0.9 * row["expected_reward"] + 0.1 * row["actual_reward"] if gated else row["actual_reward"]
        assert row["effective_reward"] == pytest.approx(blend, abs=1e-6)


def test_reward_of_another_episode_completes_no_experience(stage, learning_of) -> None:
    learning = learning_of()
    actor = stage.actor(stage.environment(sessions=1), learning=learning, sample=True)
    until(lambda: actor.decisions > 5)
    actor.stop()
    actor.thread.join(10)
    session = next(iter(actor.sessions))
    before = learning.buffer.get_stats()["completed_count"]
    state, aux, reset = actor.sessions.gather([session], torch.zeros(1, 3, 1, 1))
    obs = torch.zeros(1, 3, 32, 8)
    learning.add([session], obs, aux, state, reset, learning.runner().decide(obs, aux, state, reset, None), None)
    learning.complete(StepResult(1, session.env_id, session.matrix.episode_id + 7, False, False, 1.0, 1.0, 0.0))
    assert learning.buffer.get_stats()["completed_count"] == before
    assert learning.buffer.get_stats()["pending_count"] == 0


def test_a_program_cannot_be_trained(learning_of) -> None:
    runner = ProgramRunner.__new__(ProgramRunner)
    with pytest.raises(ConfigError, match="--runtime eager"):
        learning_of(model=ServedModel("p", runner, None, None))


def test_untrainable_champion_does_not_take_over(stage, learning_of, caplog) -> None:
    ready = [tiny_model(name="v002", config=TINY.model_copy(update={"separate_value": True}))]
    learning = learning_of()
    actor = stage.actor(
        stage.environment(sessions=2),
        learning=learning,
        sample=True,
        # Asked in the server's thread, which may run before `actor` has a value here.
        successor=lambda: ready.pop() if ready and learning.buffer.get_stats()["completed_count"] else None,
    )
    until(lambda: not ready)
    after = actor.decisions
    until(lambda: actor.decisions > after + 40)
    assert actor.model.name == "v001" and "v002 does not take over from v001" in caplog.text


def matrix(episode: int) -> DistanceMatrix:
    blank = np.zeros((1, 32, 8), np.float32)
    pose, overhead = RobotPose(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), np.zeros((0, 0, 3), np.uint8)
    ids, valid = blank.astype(np.int32), blank > 0
    return DistanceMatrix(episode, np.zeros(1, np.int32), (32, 8), blank, blank, ids, valid, overhead, pose, 0, 0.0)


def test_curiosity_is_reset_in_stored_episode_starts(learning_of) -> None:
    """Curiosity about the last position of an episode is not carried over to the next one."""
    model = tiny_model()
    learning = learning_of(model=model)
    table = SessionTable(model.runner, 4, ShaperConfig(memory_exclusion=2, memory_capacity=20))
    session = table.open(matrix(0), 0.0)
    generator = torch.Generator().manual_seed(0)
    curiosity = []
    for step in range(12):
        if step in (5, 9):
            session.matrix, session.begins = matrix(step), True
        obs = torch.rand(1, 3, 32, 8, generator=generator)
        state, aux, reset = table.gather([session], obs)
        curiosity.append(float(aux[0, 2]))
        decision = learning.runner().decide(obs, aux, state, reset, torch.randn(1, 4, generator=generator))
        table.scatter([session], reset, decision.state, decision.latent)
        session.velocity_before = session.velocity
        learning.add([session], obs, aux, state, reset, decision, None)
        episode = session.matrix.episode_id
        learning.complete(StepResult(step, 0, episode, False, step in (4, 8), 1.0, 1.0, 0.0))
    assert curiosity[5] != 0.0 and curiosity[9] != 0.0
    sample = learning.buffer.sample(12)
    policy = learning.trainer.serving.policy
    with torch.no_grad():
        log_prob = policy.heads.distribution(features_of(policy, sample)).log_prob(sample.column("action"))
    # Log-probabilities of −6 are float32 numbers 5e-7 apart; what the policy never saw moved the ratio by 1e-3.
    assert ((log_prob - sample.column("log_prob")).exp() - 1).abs().max() < 5e-6


def test_action_value_policy_is_refused_before_a_journal(learning_of, tmp_path) -> None:
    model = tiny_model(name="hunter", config=TINY.model_copy(update={"distribution": "q"}))
    with pytest.raises(
        ConfigError, match=r"hunter chooses by action values .* ppo, grpo, dpo and bc.* without --learn"
    ):
        learning_of(model=model)
    assert not list(tmp_path.iterdir())
    live = learning_of()
    with pytest.raises(ConfigError, match="hunter"):
        live.adopt(model)
    assert live.trainer.serving.version == 0
    live.close()


@pytest.mark.parametrize("setting", [{"shadow_evaluation": 5}, {"reward_mode": "gate_signal"}])
def test_gate_settings_without_a_gate_are_refused(setting, learning_of, tmp_path) -> None:
    with pytest.raises(ConfigError, match="--gate"):
        learning_of(**setting)
    assert not list(tmp_path.iterdir())
