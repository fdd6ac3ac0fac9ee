"""Learning behind the gate: proposed actions with the results of the flown ones."""

from __future__ import annotations

import numpy as np
import torch

from navi_core.config import ShaperConfig
from navi_core.service.gate import ActionChoice, GateVerdict
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.learning.policy_update import features_of
from navi_core.service.policies.sessions import SessionTable
from navi_core.service.wire import StepResult
from tests.service.learning.test_learning_actor import learning_of, matrix  # noqa: F401 - a fixture

SENT, SLOWED, HOVERS = (True, True), (False, True), (False, False)


def choice_of(drawn: bool, flown: bool, expected: float = -0.6) -> ActionChoice:
    """A gate's choice for one motion: whether it is flown as drawn, and whether it is flown at all."""
    part, none = torch.tensor([expected]), torch.zeros(1, 4)
    verdicts = (GateVerdict(torch.tensor([send]), ~torch.tensor([send]), part, {}, none) for send in (drawn, flown))
    return ActionChoice(*verdicts, none, none)


class Drone:
    """One drone whose decisions are learned from."""

    def __init__(self, learning: FlightLearning) -> None:
        self.learning = learning
        runner = learning.runner()
        self.table = SessionTable(runner, 4, ShaperConfig(memory_exclusion=2, memory_capacity=20))
        self.session = self.table.open(matrix(0), 0.0)
        self.generator = torch.Generator().manual_seed(0)
        self.log_probs: list[float] = []

    def decide(self, proposal: ActionChoice | None) -> None:
        obs = torch.rand(1, 3, 32, 8, generator=self.generator)
        state, aux, reset = self.table.gather([self.session], obs)
        decision = self.learning.runner().decide(obs, aux, state, reset, torch.randn(1, 4, generator=self.generator))
        self.table.scatter([self.session], reset, decision.state, decision.latent)
        self.session.velocity_before = self.session.velocity
        self.log_probs.append(float(decision.log_prob[0]))
        self.learning.add([self.session], obs, aux, state, reset, decision, proposal)

    def came(self, reward: float, *, done: bool = False, episode: int = 0) -> None:
        self.learning.complete(StepResult(0, 0, episode, done, False, reward, reward, 0.0))


def test_proposed_actions_are_learned_after_flown_ones(learning_of) -> None:  # noqa: F811
    """Held-back and slowed decisions precede later ones in the state: no ratio changes."""
    learning = learning_of()
    drone = Drone(learning)
    for step in range(15):
        drone.decide(choice_of(*(SENT, SLOWED, HOVERS)[step % 3]))
        drone.came(1.0)
    sample, policy = learning.buffer.sample(15), learning.trainer.serving.policy
    assert sorted(sample.rows["place"].tolist()) == [step for step in range(15) if step % 3 < 2]
    with torch.no_grad():
        log_prob = policy.heads.distribution(features_of(policy, sample)).log_prob(sample.column("action"))
    assert ((log_prob - sample.column("log_prob")).exp() - 1).abs().max() < 5e-6
    assert sample.rows["send"].tolist() == [place % 3 == 0 for place in sample.rows["place"].tolist()]
    assert (sample.rows["actual"] == 1.0).all() and np.allclose(sample.rows["expected"], -0.6)


def test_lost_answer_completes_no_other_decision(learning_of) -> None:  # noqa: F811
    learning = learning_of()
    drone, seen = Drone(learning), []
    learning.trainer.admission.observe = lambda version, reward, drone, ends: seen.append(reward)
    drone.decide(choice_of(*SENT))  # its answer is lost
    drone.decide(choice_of(*HOVERS))
    drone.came(7.0)
    drone.came(9.0)  # belongs to no decision
    drone.decide(choice_of(*HOVERS))
    drone.came(5.0, episode=1)  # another episode's
    stats = learning.buffer.get_stats()
    assert (stats["completed_count"], stats["pending_count"], stats["total_unlearned"]) == (0, 0, 1)
    # A version's return counts every reward of its drones, gated or not.
    assert seen == [7.0]


def test_a_goal_that_is_reached_while_hovering_ends_the_trajectory(learning_of) -> None:  # noqa: F811
    learning = learning_of(train_on_wait=True)
    drone = Drone(learning)
    gated = choice_of(*HOVERS)
    learning.gate = type("Gate", (), {"scenes": lambda self, rows: torch.zeros(1, dtype=torch.int64)})()
    for step in range(2):
        drone.decide(gated)
        drone.came(10.0, done=step == 1)
    sample = learning.buffer.sample(2)
    assert np.allclose(sample.rows["actual"], -0.3)
    assert sample.trajectories[0].ended and sample.trajectories[0].terminated


def test_waiting_drone_in_unknown_scene_is_not_learned_from(learning_of) -> None:  # noqa: F811
    learning = learning_of(train_on_wait=True)
    drone = Drone(learning)
    drone.decide(choice_of(*HOVERS, expected=0.0))
    drone.came(1.0)
    assert learning.buffer.get_stats()["completed_count"] == 0
