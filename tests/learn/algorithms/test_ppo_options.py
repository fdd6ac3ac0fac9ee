"""Every option of the update against numbers worked out by hand or against its slow twin."""

import copy
import math

import pytest
import torch

from navi_core.config import PPOConfig, Schedule, parse_config
from navi_core.errors import ConfigError
from navi_core.learn import gae, gae_reference
from navi_core.learn.algorithms.gradient_steps import clip_gradients
from navi_core.learn.algorithms.ppo import PPOLearner
from navi_core.learn.algorithms.rollout_learner import pieces
from navi_core.learn.estimators.losses import approximate_kl, value_loss
from navi_core.learn.estimators.noise import scheduled, uniforms
from navi_core.learn.estimators.normalisation import RewardScale
from navi_core.learn.rollout.minibatches import drawn_by_advantage, epoch_minibatches
from tests.learn.builders import CPU, filled, same_but_for_kinks, small_config, small_parts, weights
from tests.learn.toy_environments import MixedEndingsEnv


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


NONE = torch.zeros(2, 1, dtype=torch.bool)


@pytest.mark.parametrize("estimate", [gae, gae_reference])
def test_importance_weights_on_difference_and_trace_by_hand(estimate):
    # Differences: 0 + .9·.2 − .1 = .08 and 1 + .9·.3 − .2 = 1.07; then .5·.08 + .9·.25·(2·1.07).
    advantages, returns = estimate(
        column(0, 1), column(0.1, 0.2), NONE, NONE, column(9, 0.3),
        gamma=0.9, lam=1.0, rho=column(0.5, 2.0), c=column(0.25, 7.0),
    )  # fmt: skip
    assert advantages[:, 0].tolist() == pytest.approx([0.5 * 0.08 + 0.9 * 0.25 * 2.14, 2.14], abs=1e-12)
    assert returns[:, 0].tolist() == pytest.approx((advantages[:, 0] + column(0.1, 0.2)[:, 0]).tolist())


def test_gae_equals_its_definition_with_importance_weights():
    g = torch.Generator().manual_seed(0)
    r, v, boot = torch.randn(3, 40, 7, generator=g, dtype=torch.float64)
    rho, c = torch.rand(2, 40, 7, generator=g, dtype=torch.float64) * 2
    end, cut = torch.rand(2, 40, 7, generator=g) < 0.1
    for ratios in ({"rho": rho, "c": c}, {"rho": rho}, {"c": c}):
        expected, _ = gae_reference(r, v, end, cut, boot, gamma=0.97, lam=0.9, **ratios)
        made, _ = gae(r, v, end, cut, boot, gamma=0.97, lam=0.9, **ratios)
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-12)
    one = torch.ones_like(r)
    assert torch.equal(gae(r, v, end, cut, boot, gamma=0.97, lam=0.9, rho=one, c=one)[0],
                       gae(r, v, end, cut, boot, gamma=0.97, lam=0.9)[0])  # fmt: skip


def test_importance_clipping_re_estimates_between_epochs():
    config = small_config(ppo={"epochs": 1, "rho_clip": 1.0, "c_clip": 1.0, "target_kl": None})
    plain = small_config(ppo={"epochs": 1, "target_kl": None})
    for epochs, same in ((1, True), (3, False)):
        made = []
        for base in (config, plain):
            one = base.model_copy(update={"ppo": base.ppo.model_copy(update={"epochs": epochs})})
            collector, learner = small_parts(one)
            learner.update(filled(collector), index=0, steps=0)
            made.append(weights(learner))
        assert all(torch.equal(a, b) for a, b in zip(*made)) is same


def test_schedules_by_hand():
    linear = Schedule(end=0.0, steps=100)
    assert [linear.value(1.0, at, None) for at in (0, 25, 100, 500)] == [1.0, 0.75, 0.0, 0.0]
    cosine = Schedule(shape="cosine", end=1e-4)
    assert [cosine.value(1e-3, s, 1000) for s in (0, 500, 1000, 2000)] == pytest.approx([1e-3, 5.5e-4, 1e-4, 1e-4])
    steps = Schedule(shape="piecewise", points=((10, 2.0), (20, 4.0)))
    assert [steps.value(0.0, at, None) for at in (0, 5, 10, 15, 20, 99)] == [0.0, 1.0, 2.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"shape": "cosine"}, "needs end"),
        ({"shape": "piecewise", "end": 1.0}, "needs points"),
        ({"shape": "piecewise", "points": [[5, 1.0], [5, 2.0]]}, "ascending"),
        ({"shape": "linear", "end": 1.0, "points": [[5, 1.0]]}, "belong to piecewise"),
        ({"shape": "linear", "end": -1.0}, "learning_rate names -1"),
    ],
)
def test_incomplete_schedules_are_refused(data, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(PPOConfig, {"schedules": {"learning_rate": data}})
    with pytest.raises(ConfigError, match="gamma"):
        parse_config(PPOConfig, {"schedules": {"gamma": {"end": 1.0}}})


def test_schedule_end_has_the_bounds_of_its_setting():
    """A deviation of 2 is a valid setting, so a schedule may end there."""
    for name, end in (("std_limit", 2.0), ("entropy_coefficient", 1.5), ("entropy_coefficient", 0.0), ("clip", 1.0)):
        made = parse_config(PPOConfig, {"std_limit": 3.0, "schedules": {name: {"end": end}}})
        assert made.schedules[name].end == end
    for name, end, words in (
        ("std_limit", 11.0, "names 11.0; allowed: above 0 up to 10"),
        ("std_limit", 0.0, "allowed: above 0 up to 10"),
        ("clip", 1.5, "allowed: above 0 up to 1"),
        ("entropy_coefficient", -0.1, r"allowed: above 0 up to inf \(and 0\)"),
        ("learning_rate", 2.0, "names 2.0; allowed: above 0 up to 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_config(PPOConfig, {"std_limit": 3.0, "schedules": {name: {"end": end}}})


def test_scheduled_settings_reach_the_update():
    schedules = {
        "learning_rate": {"shape": "cosine", "end": 1e-4},
        "clip": {"end": 0.1},
        "entropy_coefficient": {"shape": "piecewise", "points": [[500, 0.0]]},
    }
    config = small_config(ppo={"schedules": schedules}, total_steps=1000)
    collector, learner = small_parts(config)
    metrics = learner.update(filled(collector), index=0, steps=500).metrics
    assert metrics["learning_rate"] == pytest.approx(5.5e-4) == learner.optimizer.param_groups[0]["lr"]
    assert metrics["clip"] == pytest.approx(0.15) and metrics["entropy_coefficient"] == 0.0
    assert scheduled(config, "clip", 0) == 0.2
    with pytest.raises(ConfigError, match="total_steps"):
        PPOLearner(collector.policy, collector.shaper, config.model_copy(update={"total_steps": None}), CPU)


def test_deviations_are_bounded_between_updates_and_parity_holds():
    limit = {"std_limit": 0.5, "schedules": {"std_limit": {"end": 0.1}}, "target_kl": None}
    config = small_config(ppo=limit, total_steps=1000)
    collector, learner = small_parts(config)
    for index, (steps, most) in enumerate(((0, 0.5), (500, 0.3), (1000, 0.1), (2000, 0.1))):
        metrics = learner.update(filled(collector), index=index, steps=steps).metrics
        deviations = learner.policy.heads.log_std.exp()
        assert (deviations <= most * (1 + 1e-6)).all() and deviations.max() > 0.9 * most
        assert metrics["parity_ratio"] < 1e-4
    # One that is below the bound stays where it was learned.
    with torch.no_grad():
        learner.policy.heads.log_std[0] = -5.0
    learner.update(filled(collector), index=9, steps=500)
    assert learner.policy.heads.log_std[0] < -4.9


def test_a_bound_of_deviations_needs_deviations_and_a_value():
    with pytest.raises(ConfigError, match="set std_limit"):
        parse_config(PPOConfig, {"schedules": {"std_limit": {"end": 0.1}}})
    config = small_config(ppo={"std_limit": 0.5})
    config = config.model_copy(update={"policy": config.policy.model_copy(update={"distribution": "beta"})})
    with pytest.raises(ConfigError, match="Gaussian"):
        small_parts(config)


def test_sequential_minibatches_are_views_in_storage_order():
    config = small_config(ppo={"order": "sequential", "minibatch": 7})
    collector, _ = small_parts(config)
    rollout = filled(collector)
    draws = list(epoch_minibatches(config, rollout, 0, 0))
    assert [(d.index.start, d.index.stop) for d in draws] == [(0, 6), (6, 12), (12, 18), (18, 24)]
    for draw in draws:
        seen, kept = rollout.minibatch(draw.index), rollout.minibatch(torch.arange(draw.index.start, draw.index.stop))
        for name in vars(kept):
            for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (getattr(seen, name), getattr(kept, name)))):
                assert torch.equal(a, b), name
        whole = rollout.observations.sequences(slice(None))
        assert seen.obs.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        slab = rollout.chunk_state[0]
        assert seen.state[0].untyped_storage().data_ptr() == slab.untyped_storage().data_ptr(), "no copy of states"


def test_shuffled_minibatches_hold_every_sequence_once():
    config = small_config(ppo={"minibatch": 7})
    rollout = filled(small_parts(config)[0])
    seen = [torch.cat([d.index for d in epoch_minibatches(config, rollout, 3, epoch)]) for epoch in range(2)]
    assert all(torch.equal(s.sort()[0], torch.arange(24)) for s in seen) and not torch.equal(*seen)


def test_drawing_by_advantage_by_hand():
    index, weight = drawn_by_advantage(
        torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.2, 0.3, 0.99], dtype=torch.float64), 1.0, 1.0
    )
    assert index.tolist() == [0, 0, 1, 1]
    assert weight.tolist() == pytest.approx([2.0, 2.0, 2 / 3, 2 / 3], rel=1e-5)  # (2 · ¼)⁻¹ and (2 · ¾)⁻¹
    half = drawn_by_advantage(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.9], dtype=torch.float64), 1.0, 0.5)[1]
    assert half.tolist() == pytest.approx([math.sqrt(2.0), math.sqrt(2 / 3)], rel=1e-5)
    unit = uniforms(0, 1000, 1)
    index, weight = drawn_by_advantage(torch.tensor([0.0, 1.0, 9.0]), unit, 0.0, 1.0)
    assert torch.bincount(index).tolist() == pytest.approx([333, 333, 333], abs=60) and (weight == 1.0).all()


def test_large_advantage_sequences_are_drawn_more_often():
    config = small_config(ppo={"order": "advantage", "advantage_exponent": 1.0})
    collector, learner = small_parts(config)
    rollout = filled(collector)
    rollout.advantages.fill_(0.01)
    rollout.advantages[:, 2] = 5.0
    rollout.advantages[::2, 2] = -5.0
    drawn = torch.cat([d.index for u in range(20) for d in epoch_minibatches(config, rollout, u, 0)])
    assert (drawn % 6 == 2).float().mean() > 0.9 and len(drawn) == 20 * rollout.sequences
    assert learner.update(rollout, index=0, steps=0).metrics["parity_ratio"] < 1e-4


@pytest.mark.parametrize("order", ["shuffled", "sequential", "advantage"])
@pytest.mark.parametrize("microbatch", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_accumulated_gradients_equal_those_of_the_whole_minibatch(order, microbatch):
    made = []
    for size in (None, microbatch):
        ppo = {"epochs": 2, "minibatch": 12, "microbatch": size, "order": order, "target_kl": None}
        collector, learner = small_parts(small_config("mamba2", ppo=ppo, shaper={"rnd_start": 0.5}))
        metrics = learner.update(filled(collector), index=0, steps=0).metrics
        made.append((weights(learner), metrics, [p.detach() for p in learner.shaper.rnd.parameters()]))
    (one, metrics_of_one, curious), (many, metrics_of_many, other) = made
    assert same_but_for_kinks(one, many)
    assert max(float((a - b).abs().max()) for a, b in zip(curious, other)) < 2e-5
    assert {k: metrics_of_many[k] for k in metrics_of_one} == pytest.approx(metrics_of_one, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_gradients_are_clipped_as_torch_does_and_named(bound):
    """Those within the bound stay what they are."""
    g = torch.Generator().manual_seed(0)
    one, two = ([torch.zeros(n, requires_grad=True) for n in (3, 50, 1)] for _ in range(2))
    for a, b in zip(one, two):
        a.grad = torch.randn(a.shape, generator=g)
        b.grad = a.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(one, bound)
    total, norms = clip_gradients(two, bound)
    assert torch.equal(total, expected) and all(torch.equal(a.grad, b.grad) for a, b in zip(one, two))
    assert float(norms.square().sum().sqrt()) == pytest.approx(float(total))


def test_value_clipping_by_hand():
    new, target, old = torch.tensor([1.0, 0.2]), torch.tensor([3.0, 0.0]), torch.tensor([0.0, 0.0])
    # 1 is cut to .5: (.5 − 3)² = 6.25 counts; .2 is within reach of 0: .04 counts.
    assert float(value_loss(new, target, old, 0.5)) == pytest.approx((6.25 + 0.04) / 2)


def test_the_kl_estimate_by_hand():
    assert float(approximate_kl(torch.tensor([0.0, math.log(2.0)]))) == pytest.approx((0 + 2 - 1 - math.log(2)) / 2)


def test_rewards_are_scaled_by_discounted_return_deviation():
    scale = RewardScale(2, gamma=0.5, clip=1.5)
    rewards = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 8.0]])
    done = torch.tensor([[False, False], [True, False], [False, False]])
    # Returns: 1, 1.5, then 1 after the end; 0, 0, 8.
    deviation = torch.tensor([1.0, 1.5, 1.0, 0.0, 0.0, 8.0]).std(correction=0)
    expected = (rewards / deviation).clamp(-1.5, 1.5)
    scale.normalise_(rewards, done)
    torch.testing.assert_close(rewards, expected)
    assert rewards.max() == 1.5 and scale.discounted.tolist() == [1.0, 8.0]
    again = RewardScale(2, gamma=0.5, clip=1.5)
    again.load_state_dict(scale.state_dict())
    more = torch.ones(1, 2)
    other = more.clone()
    scale.normalise_(more, done[:1])
    again.normalise_(other, done[:1])
    assert torch.equal(more, other)


@pytest.mark.parametrize(
    "options",
    [
        {"normalise_rewards": True},
        pytest.param({"normalise_returns": False}, marks=pytest.mark.slow),
        pytest.param({"value_clip": 0.2}, marks=pytest.mark.slow),
    ],
)
def test_options_of_scale_resume_exactly(options):
    config = small_config(ppo=options)
    collector, learner = small_parts(config)
    for index in range(2):
        learner.update(filled(collector), index=index, steps=0)
    twin_collector, twin = small_parts(config, seed=1)
    twin.policy.load_state_dict(learner.policy.state_dict())
    twin.optimizer.load_state_dict(copy.deepcopy(learner.optimizer.state_dict()))
    twin.load_state_dict(learner.state_dict())
    twin_collector.load_state_dict(copy.deepcopy(collector.state_dict()))
    for c, x in ((collector, learner), (twin_collector, twin)):
        x.update(filled(c), index=2, steps=0)
    assert all(torch.equal(a, b) for a, b in zip(weights(learner), weights(twin)))


def test_cpu_pieces_of_large_panoramas_keep_the_gradient():
    sensor = {"azimuth_bins": 128, "elevation_bins": 48}
    made = []
    for size in (None, 1000):
        policy = {**sensor, "encoder": "ring_cnn", "core": "gru", "aux": "full"}
        config = small_config(
            rows=2, env=sensor, policy=policy, ppo={"rollout": 96, "bptt": 96, "minibatch": 2, "microbatch": size}
        )
        env = MixedEndingsEnv(2, azimuth=128, elevation=48)
        collector, learner = small_parts(config, env)
        rollout = filled(collector)
        assert next(pieces(1000, size, rollout, CPU)).stop == (1 if size is None else 1000)
        learner.update(rollout, index=0, steps=0)
        made.append(weights(learner))
    assert max(float((a - b).abs().max()) for a, b in zip(*made)) < 2e-5
