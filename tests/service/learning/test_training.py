"""Policy update: gradients, rewards and gate validation by every setting."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from navi_core.config import ContinuousTrainingConfig, GateConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.policy import build_policy
from navi_core.service import Experience, ExperienceReplayBuffer, TrainingMetrics
from navi_core.service.gate import DroneState, RolloutGate, choose_action
from navi_core.service.learning.experience import judged_rewards, training_reward
from navi_core.service.learning.policy_update import PolicyUpdate, features_of
from navi_core.world import NavigationEnv
from tests.service.conftest import SMALL, TINY

QUICK = {"training_interval": 0.01, "batch_size": 16, "min_batch_size": 4, "buffer_capacity": 500, "state_interval": 32}


def config(**changes) -> ContinuousTrainingConfig:
    return ContinuousTrainingConfig(**QUICK | changes)


def flown(policy, settings: ContinuousTrainingConfig, decisions: int = 40, sessions: int = 2, **changes):
    """Return a buffer of random flight of a policy whose reward is the first action axis."""
    kept = ExperienceReplayBuffer(settings)
    generator = torch.Generator().manual_seed(0)
    state, reset = policy.initial_state(sessions), torch.ones(sessions, dtype=torch.bool)
    for step in range(decisions):
        obs = torch.rand(sessions, 3, 32, 8, generator=generator)
        noise = torch.randn(sessions, 4, generator=generator)
        with torch.no_grad():
            out = policy.act(obs, torch.zeros(sessions, 3), state, reset, noise)
        for i in range(sessions):
            given = {
                "session_id": i, "latent": out.embedding[i], "recurrent_state": tuple(s[i] for s in state),
                "action": out.action[i], "log_prob": float(out.log_prob[i]), "value": float(out.value[i]),
                "begins": bool(reset[i]), "actual_reward": float(out.action[i, 0]), "expected_reward": 0.5,
                "observation": obs[i] if settings.store == "observation" else None, "ends": step == 19,
            }  # fmt: skip
            assert kept.add(Experience(**given | changes))
        state, reset = out.state, torch.full((sessions,), step == 19)
    return kept


@pytest.mark.parametrize("core", ["gru", "mamba2", "none"])
def test_stored_experiences_reproduce_the_flight_features(core: str) -> None:
    """Sampling, burn-in from the stored state and resets reproduce acting, so the first ratio is one."""
    policy = build_policy(TINY.model_copy(update={"core": core})).eval()
    kept = flown(policy, config(state_interval=16), decisions=75)
    sample = kept.sample(150)
    with torch.no_grad():
        again = features_of(policy, sample)
        ratio = (policy.heads.distribution(again).log_prob(sample.column("action")) - sample.column("log_prob")).exp()
    assert again.shape == (150, 32)
    assert (ratio - 1).abs().max() < 2e-3  # states are kept in half precision


def test_full_precision_state_reproduces_the_log_probability() -> None:
    policy = build_policy(TINY).eval()
    kept = flown(policy, config(state_interval=200), decisions=75)
    sample = kept.sample(150)
    with torch.no_grad():
        log_prob = policy.heads.distribution(features_of(policy, sample)).log_prob(sample.column("action"))
    assert (log_prob - sample.column("log_prob")).abs().max() < 1e-4


@pytest.mark.parametrize("terminated", [False, True])
def test_update_step_matches_the_formulas(terminated: bool) -> None:
    """Two updates: in the second one the ratios and values have moved."""
    settings = config(
        learning_rate=1e-2, clip=0.05, value_coefficient=0.25, entropy_coefficient=0.05, max_grad_norm=0.1,
        discount=0.9, trace=0.8,
    )  # fmt: skip
    policy, scale = build_policy(TINY), (0.3, 1.7)
    sample = flown(policy, settings, terminated=terminated).sample(24)
    update, twin = PolicyUpdate(copy.deepcopy(policy), settings, scale), copy.deepcopy(policy)
    adam = torch.optim.Adam([p for name, p in twin.named_parameters() if not name.startswith("encoder")], lr=1e-2)
    rewards = np.random.default_rng(1).normal(size=len(sample))
    for _ in range(2):
        loss = update.step(sample, rewards)
        advantage, target = np.empty((2, len(sample)))
        for i, (trajectory, place) in enumerate(zip(sample.trajectories, sample.rows["place"].tolist(), strict=True)):
            earned, value = (
                x[place : trajectory.count].astype(np.float64) for x in (trajectory.reward, trajectory.value)
            )
            earned[0] = rewards[i]
            following = np.append(value[1:], 0.0 if terminated else value[-1])
            advantage[i] = (0.72 ** np.arange(len(value)) * (earned + 0.9 * following - value)).sum()
            target[i] = (advantage[i] + value[0] - 0.3) / 1.7
        a = torch.from_numpy((advantage - advantage.mean()) / advantage.std()).float()
        features = features_of(twin, sample)
        seen, goal = twin.heads.value(features), torch.from_numpy(target).float()
        distribution, old = twin.heads.distribution(features), (sample.column("value") - 0.3) / 1.7
        ratio = (distribution.log_prob(sample.column("action")) - sample.column("log_prob")).exp()
        gained = torch.minimum(ratio * a, ratio.clamp(0.95, 1.05) * a).mean()
        error = torch.maximum((seen - goal) ** 2, (old + (seen - old).clamp(-0.05, 0.05) - goal) ** 2).mean()
        total = -gained + 0.25 * error - 0.05 * distribution.entropy().mean()
        assert loss == pytest.approx(float(total.detach()), rel=1e-4)
        adam.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_([p for p in twin.parameters() if p.grad is not None], 0.1)
        adam.step()
        for ours, theirs in zip(update.policy.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_encoder_is_trained_only_on_stored_observations() -> None:
    for store in ("latent", "observation"):
        policy = build_policy(TINY)
        kept = flown(policy, config(store=store))
        update = PolicyUpdate(copy.deepcopy(policy), config(store=store, learning_rate=3e-3))
        before = features_of(policy, kept.sample(80))
        for _ in range(30):
            sample = kept.sample(16)
            update.step(sample, sample.rows["actual"].astype(np.float64))
        changed = any(
            not torch.equal(a, b) for a, b in zip(policy.encoder.parameters(), update.policy.encoder.parameters())
        )
        assert changed == (store == "observation")
        after = update.policy.heads.actor(before.detach())
        assert after[:, 0].mean() > policy.heads.actor(before.detach())[:, 0].mean() + 0.05


def test_training_reward_uses_the_specified_weights() -> None:
    c = ContinuousTrainingConfig()
    assert training_reward(1.0, 0.5, True, c) == pytest.approx(0.85)
    assert training_reward(1.0, 0.5, False, c) == pytest.approx(0.25)
    assert training_reward(1.0, 0.5, None, c) == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("flag", "agrees", "expected"),
    [
        ({"skip_disagreed_experiences": True}, False, None),
        ({"skip_disagreed_experiences": True}, True, 0.85),
        ({"gate_disagreement_penalty": 0.2}, False, 0.1),
        ({"simulation_reward_weight": 0.5, "actual_reward_weight": 0.5}, True, 0.75),
        ({"reward_mode": "actual_only"}, False, 1.0),
        ({"reward_mode": "gate_signal"}, True, 0.5),
    ],
)
def test_every_reward_flag_has_its_effect(flag, agrees, expected) -> None:
    assert training_reward(1.0, 0.5, agrees, ContinuousTrainingConfig(**flag)) == (
        None if expected is None else pytest.approx(expected)
    )


class Judge:
    """A gate that finds collisions for every second motion."""

    config, worth = GateConfig(), 0.25

    def validate(self, position, yaw, velocity, action, scene):
        from navi_core.service.gate import GateVerdict

        collides = torch.arange(len(position)) % 2 == 1
        reward = torch.full((len(position),), self.worth)
        return GateVerdict(~collides, collides, reward, {"novelty": torch.zeros(len(position))}, velocity)


def test_gate_validation_counts_agreements_and_can_be_switched_off() -> None:
    policy = build_policy(TINY)
    kept = flown(policy, config(), scene=0)
    sample = kept.sample(16)
    judged = judged_rewards(sample, Judge(), config())
    assert (judged.agreed, judged.judged) == (8, 16) and judged.used.all()
    actual = sample.rows["actual"].astype(np.float64)
    assert judged.reward[0] == pytest.approx(0.7 * actual[0] + 0.3 * 0.25) and judged.reward[1] == pytest.approx(0.125)
    off = judged_rewards(sample, Judge(), config(gate_validation_enabled=False))
    assert off.judged == 0 and off.reward[1] == pytest.approx(0.7 * actual[1] + 0.3 * 0.5)
    skipped = judged_rewards(sample, Judge(), config(skip_disagreed_experiences=True))
    assert skipped.used.sum() == 8
    # A motion that was sent is doubted for a wall in its way, not for what it promises.
    poor = Judge()
    poor.worth = -3.0
    assert judged_rewards(sample, poor, config()).agreed == 8


def gated(field, settings: ContinuousTrainingConfig) -> tuple[RolloutGate, ExperienceReplayBuffer]:
    """Return a gate that asks for much reward, and what eight drones flew and had to wait behind it."""
    env = NavigationEnv(field, 8, SMALL.model_copy(update={"stagger": False}), seed=0)
    gate, kept = RolloutGate(field, SMALL, GateConfig(threshold=0.5), capacity=8), ExperienceReplayBuffer(settings)
    rows, generator = torch.arange(8), torch.Generator().manual_seed(0)
    obs, pose = env.reset(), env.poses()
    gate.begin(DroneState(rows, pose["position"], pose["yaw"], torch.zeros(8, 4), obs))
    for _ in range(10):
        position, yaw, velocity = (env._drone_state[name].clone() for name in ("position", "yaw", "velocity"))
        action = torch.rand(8, 4, generator=generator) - torch.tensor([0.3, 0.5, 0.5, 0.5])
        verdict = choose_action(gate, DroneState(rows, position, yaw.squeeze(1), velocity, obs), action).proposed
        obs = env.step(torch.where(verdict.send[:, None], action, 0.0)).obs
        for i in range(8):
            expected = float(verdict.expected_reward[i])
            experience = Experience(
                i, torch.zeros(4), (), action[i], 0.0, 0.0, begins=True, scene=0, position=position[i],
                yaw=float(yaw[i]), velocity=velocity[i], gate_send=bool(verdict.send[i]), expected_reward=expected,
                components={name: float(part[i]) for name, part in verdict.components.items()},
                actual_reward=expected * (1.0 if verdict.send[i] else settings.wait_reward_multiplier),
            )  # fmt: skip
            assert kept.add(experience)
    return gate, kept


def test_held_back_motions_are_trained_on(flown_field) -> None:
    """The gate agrees with them: it would hold them back again, even without the map of that moment."""
    settings = config(train_on_wait=True, wait_reward_multiplier=0.25, skip_disagreed_experiences=True)
    gate, kept = gated(flown_field, settings)
    sample = kept.sample(80)
    waited = ~sample.rows["send"]
    assert 20 < waited.sum() < 75
    judged = judged_rewards(sample, gate, settings)
    used = judged.used & waited
    assert judged.judged == 80 and used.sum() > 0.9 * waited.sum()
    before = judged.reward[used]
    sample.rows["actual"][waited] *= 2
    gained = judged_rewards(sample, gate, settings).reward[used] - before
    assert np.allclose(gained, 0.35 * sample.rows["actual"][used], atol=1e-6)


def test_held_back_motion_accepted_later_is_a_disagreement(flown_field) -> None:
    gate, kept = gated(flown_field, config())
    sample = kept.sample(80)
    sent = sample.rows["send"].copy()
    sample.rows["send"] = False
    judged = judged_rewards(sample, gate, config(skip_disagreed_experiences=True))
    assert sent.sum() > 5 and (judged.used & sent).sum() <= 0.1 * sent.sum()


def test_all_invalid_settings_are_named_at_once() -> None:
    wrong = {"training_interval": 0, "batch_size": 4, "min_batch_size": 8, "lock_timeout": -1, "clip": 0}
    with pytest.raises(ConfigError) as error:
        parse_config(ContinuousTrainingConfig, wrong | {"actual_reward_weight": 0.5})
    message = str(error.value)
    for part in (
        "training_interval is 0",
        "min_batch_size 8 is above batch_size 4",
        "add up to 0.8",
        "lock_timeout",
        "clip",
    ):
        assert part in message, message
    assert ContinuousTrainingConfig(actual_reward_weight=0.705).actual_reward_weight == 0.705


def test_gate_agreement_is_exact_over_a_window_of_100() -> None:
    metrics = TrainingMetrics()
    metrics.record(loss=0.0, samples=100, seconds=0.0, agreed=29, judged=100)
    assert (
        metrics.total_agreed == 29
        and metrics.snapshot(is_running=False, model_version=0)["average_gate_agreement"] == 0.29
    )
    for _ in range(100):
        metrics.record(loss=1.0, samples=10, seconds=0.001, agreed=10, judged=10)
    snapshot = metrics.snapshot(is_running=True, model_version=7)
    assert (
        snapshot["average_gate_agreement"] == 1.0
        and snapshot["average_loss"] == 1.0
        and snapshot["average_batch_size"] == 10
    )
    assert snapshot["average_step_time_ms"] == pytest.approx(1.0)
    assert snapshot["lifetime_gate_agreement"] == pytest.approx(1029 / 1100) and snapshot["model_version"] == 7
