"""Losses by hand; parity of acting and learning before the first update."""

import math

import pytest
import torch

from navi_core.config import PolicyConfig, PPOConfig, ShaperConfig, TrainConfig
from navi_core.errors import NonFiniteError
from navi_core.learn.algorithms.ppo import PPOLearner
from navi_core.learn.estimators.losses import policy_loss, value_loss
from navi_core.learn.rollout.collector import Collector
from navi_core.policy import RewardShaper, build_policy
from tests.learn.toy_environments import MixedEndingsEnv, PoisonEnv

CPU = torch.device("cpu")


def tensor(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def test_policy_loss_by_hand():
    assert float(policy_loss(tensor(1.5), tensor(1.0), 0.2)) == pytest.approx(-1.2)
    assert float(policy_loss(tensor(1.5), tensor(-1.0), 0.2)) == pytest.approx(math.exp(1.5), rel=1e-6)
    assert float(policy_loss(tensor(-1.5), tensor(-1.0), 0.2)) == pytest.approx(0.8)
    assert float(policy_loss(tensor(0.0, 0.0), tensor(1.0, -3.0), 0.2)) == pytest.approx(1.0)


def test_clipped_ratios_carry_no_gradient():
    log_ratio = torch.tensor([1.5, -1.5, 0.1], requires_grad=True)
    policy_loss(log_ratio, tensor(1.0, -1.0, 1.0), 0.2).backward()
    assert log_ratio.grad[:2].tolist() == [0.0, 0.0]
    assert float(log_ratio.grad[2]) == pytest.approx(-math.exp(0.1) / 3, rel=1e-5)


def test_value_loss_by_hand():
    assert float(value_loss(tensor(1.0), tensor(3.0), tensor(0.0), None)) == 4.0
    # The step 0 → 1 is cut at 0.5, so the error counted is that of 0.5.
    assert float(value_loss(tensor(1.0), tensor(3.0), tensor(0.0), 0.5)) == 6.25


def parts(core: str, env_class=MixedEndingsEnv, rows: int = 6, **ppo):
    policy = PolicyConfig(encoder="ring_cnn", core=core, azimuth_bins=16, elevation_bins=8, aux="full")
    ppo = {"rollout": 64, "bptt": 16, "minibatch": 6, "learning_rate": 1e-3} | ppo
    config = TrainConfig(
        actors=rows,
        policy=policy,
        env={"azimuth_bins": 16, "elevation_bins": 8},
        ppo=PPOConfig(**ppo),
        shaper=ShaperConfig(loop_coefficient=0.0),
    )
    net = build_policy(config.policy, seed=0)
    shaper = RewardShaper(config.shaper, rows, config.policy.width, 0)
    collector = Collector(env_class(rows), net, shaper, config, device=CPU)
    return config, collector, PPOLearner(net, shaper, config, CPU)


@pytest.mark.parametrize("encoder", ["ring_cnn", "rayvit"])
@pytest.mark.parametrize("core", ["mamba2", "gru"])
def test_parity_before_the_first_update_with_endings_inside_chunks(core, encoder):
    policy = PolicyConfig(encoder=encoder, core=core, azimuth_bins=16, elevation_bins=8, aux="full")
    net = build_policy(policy, seed=2)
    shaper = RewardShaper(ShaperConfig(loop_coefficient=0.0), 6, 128, 0)
    config = TrainConfig(seed=2, env={"azimuth_bins": 16, "elevation_bins": 8}, policy=policy)
    collector = Collector(MixedEndingsEnv(6), net, shaper, config, device=CPU)
    rollout = collector.new_rollout(64, 16)
    for _ in range(2):  # the second rollout starts with a carried state and without a fresh reset
        collector.collect(rollout)
        assert (rollout.reset.view(4, 16, 6)[:, 1:].any(dim=1)).all(), "every sequence has an ending inside"
        batch = rollout.minibatch(torch.randperm(rollout.sequences))
        with torch.no_grad():
            out = net.evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
        assert (torch.exp(out.log_prob - batch.log_probs) - 1).abs().max() < 1e-4
        assert (out.value - batch.values).abs().max() < 1e-4


@pytest.mark.parametrize("core", ["mamba2", "gru"])
def test_parity_is_recorded_before_every_update(core):
    _, collector, learner = parts(core)
    rollout = collector.new_rollout(64, 16)
    for index in range(3):
        collector.collect(rollout)
        metrics = learner.update(rollout, index=index, steps=0).metrics
        assert metrics["parity_ratio"] < 1e-4 and metrics["parity_value"] < 1e-4
        assert metrics["approx_kl"] > 0


def test_parity_would_show_a_forgotten_reset():
    _, collector, learner = parts("gru")
    rollout = collector.new_rollout(64, 16)
    collector.collect(rollout)
    rollout.reset.zero_()
    metrics = learner.update(rollout, index=0, steps=0).metrics
    assert metrics["parity_ratio"] > 1e-3


def test_kl_stop_skips_the_remaining_epochs_only():
    for target, epochs in ((1e-9, 1), (1e9, 4), (None, 4)):
        _, collector, learner = parts("gru", epochs=4, target_kl=target)
        rollout = collector.new_rollout(64, 16)
        collector.collect(rollout)
        stats = learner.update(rollout, index=0, steps=0)
        assert stats.epochs == epochs
        assert stats.timer.calls()["optimizer_step"] == epochs * 4


def test_minibatches_are_the_sequences_they_claim():
    _, collector, _ = parts("gru")
    rollout = collector.new_rollout(64, 16)
    collector.collect(rollout)
    for index in (0, 5, 6, 17, 23):
        batch = rollout.minibatch(torch.tensor([index]))
        chunk, row = divmod(index, 6)
        span = slice(chunk * 16, chunk * 16 + 16)
        assert torch.equal(batch.obs[0], rollout.observations.by_step()[span, row])
        assert torch.equal(batch.log_probs[0], rollout.log_probs[span, row])
        assert torch.equal(batch.reset[0], rollout.reset[span, row])
        assert torch.equal(batch.state[0][0], rollout.chunk_state[0][chunk, row])


def test_advantages_are_normalised_once_over_the_rollout():
    _, collector, learner = parts("gru")
    rollout = collector.new_rollout(64, 16)
    collector.collect(rollout)
    learner.update(rollout, index=0, steps=0)
    assert float(rollout.advantages.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(rollout.advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_nan_reward_error_stops_the_rollout_and_names_it():
    _, collector, _ = parts("gru", PoisonEnv)
    with pytest.raises(NonFiniteError, match="reward term pay") as caught:
        collector.collect(collector.new_rollout(64, 16))
    assert caught.value.tensor == "reward term pay"
    assert caught.value.exit_code != 0


def test_nan_advantages_error_names_the_policy_loss():
    _, collector, learner = parts("gru")
    rollout = collector.new_rollout(64, 16)
    collector.collect(rollout)
    rollout.advantages.fill_(float("nan"))
    learner_rollout = rollout
    learner_rollout.estimate_advantages = lambda **_: None  # keep the poisoned advantages
    with pytest.raises(NonFiniteError) as caught:
        learner.update(learner_rollout, index=0, steps=0)
    assert caught.value.tensor == "policy_loss"
