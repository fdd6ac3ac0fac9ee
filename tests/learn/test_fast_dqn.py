"""The fast path of DQN: its gradient, targets and smoothing are those of the learner it stands in for."""

import itertools

import numpy as np
import pytest
import torch

from navi_core.config import SmoothingConfig, parse_config
from navi_core.config.fast_dqn import FastDQNConfig
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.learn import DriftSmoother, double_dqn_targets
from navi_core.learn.estimators.knn_kernel import compute_knn_kernel, local_structure
from navi_core.learn.fast.dqn import FastDQN, unit_nearness
from navi_core.learn.fast.q_loops import choose_greedily, smooth_targets


def make(**changes):
    data = {
        "total_steps": 4096,
        "dqn": {"rollout": 16, "bptt": 16, "replay_ratio": 4.0, "learning_starts": 256, "huber": 1.0},
        "replay": {"batch_size": 64, "capacity": 2000},
        "early_stopping": {"eval_interval": 1024},
        "evaluation_episodes": 4,
    }
    for key, value in changes.items():
        data[key] = data.get(key, {}) | value if isinstance(value, dict) else value
    return parse_config(FastDQNConfig, data)


def forward(widths, flat, x):
    """A perceptron as torch has it."""
    at, latents = 0, x
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        weight, bias = flat[at : at + a * b].view(a, b), flat[at + a * b : at + (a + 1) * b]
        at += (a + 1) * b
        last = i == len(widths) - 2
        latents = latents if last else torch.tanh(latents @ weight + bias)
        out = latents @ weight + bias if last else None
    return out, latents


@pytest.mark.parametrize("smoothed", [False, True])
def test_a_gradient_step_is_that_of_autograd(smoothed):
    config = make(kernel_smoothing={"enabled": smoothed, "k": 5, "trust_region_tau": 0.02})
    agent = FastDQN(config)
    for _ in range(3):
        agent.collect()
    agent.params[:] += 0.1 * np.random.default_rng(0).standard_normal(len(agent.params)).astype(np.float32)
    agent.target_params[:] += 0.1 * np.random.default_rng(1).standard_normal(len(agent.params)).astype(np.float32)
    items, _, weights = agent.replay.sample(64)
    agent.replay._draws -= 1
    widths = (4, 64, 64, 2)
    flat = torch.tensor(agent.params, requires_grad=True)
    target = torch.tensor(agent.target_params)
    online = forward(widths, flat, items["next"])[0]
    goal = double_dqn_targets(
        online, forward(widths, target, items["next"])[0], items["return"], items["discount"] == 0, items["discount"]
    )
    values, latents = forward(widths, flat, items["obs"])
    if smoothed:
        goal, decision = DriftSmoother(config.kernel_smoothing)(goal, latents, agent.steps)
        assert 0 < decision.tau_clip < 1
    q = values.gather(1, items["action"][:, None]).squeeze(1)
    (torch.nn.functional.huber_loss(q, goal, reduction="none") * weights).mean().backward()
    before = agent.params.copy()
    agent.gradient_step(1e-3)
    scale = float(flat.grad.abs().max())
    np.testing.assert_allclose(agent._grads, flat.grad.numpy(), rtol=0, atol=2e-6 * max(scale, 1.0))
    np.testing.assert_allclose(agent._errors, (goal - q).detach().numpy(), atol=2e-6)
    flat.grad.mul_(min(1.0, config.dqn.max_grad_norm / float(flat.grad.norm())))
    adam = torch.optim.Adam([flat], lr=1e-3, eps=1e-5)
    flat.data.copy_(torch.tensor(before))
    adam.step()
    large = flat.grad.abs() > 1e-4
    np.testing.assert_allclose(agent.params[large], flat.detach().numpy()[large], atol=2e-5)


@pytest.mark.parametrize(
    ("dqn", "replay"),
    [
        ({"n_step": 7, "gamma": 0.9, "polyak": 0.3}, {"alpha": 0.3}),
        ({"target_update": "periodic", "target_period": 3}, {"prioritized_replay": False}),
        ({"huber": 0.1, "n_step": 1, "max_grad_norm": 0.05}, {"alpha": 1.0, "beta0": 1.0}),
    ],
    ids=["polyak", "periodic, uniform", "clipped"],
)
def test_gradient_steps_are_those_of_float64(dqn, replay):
    """Weights, target network and priorities over several steps, from what the replay holds."""
    agent = FastDQN(make(dqn=dqn, replay=replay))
    c, widths = agent.config, (4, 64, 64, 2)
    for _ in range(3):
        agent.collect()
    agent.params[:] += 0.1 * np.random.default_rng(0).standard_normal(len(agent.params)).astype(np.float32)
    flat = torch.tensor(agent.params, dtype=torch.float64, requires_grad=True)
    target, adam = torch.tensor(agent.target_params, dtype=torch.float64), torch.optim.Adam([flat], 3e-3, eps=1e-5)
    for step in range(1, 8):
        items, places, weights = agent.replay.sample(64)
        agent.replay._draws -= 1
        wanted = agent.replay.priorities()
        obs, after = items["obs"].double(), items["next"].double()
        with torch.no_grad():
            best = forward(widths, flat, after)[0].argmax(1, keepdim=True)
            following = forward(widths, target, after)[0].gather(1, best).squeeze(1)
        taken = forward(widths, flat, obs)[0].gather(1, items["action"][:, None]).squeeze(1)
        error = items["return"] + items["discount"] * following - taken
        small = error.abs() <= c.dqn.huber
        loss = torch.where(small, 0.5 * error.square(), c.dqn.huber * (error.abs() - 0.5 * c.dqn.huber))
        adam.zero_grad()
        (loss * weights).mean().backward()
        torch.nn.utils.clip_grad_norm_([flat], c.dqn.max_grad_norm)
        adam.step()
        with torch.no_grad():
            if c.dqn.target_update == "polyak":
                target += c.dqn.polyak * (flat - target)
            elif step % c.dqn.target_period == 0:
                target.copy_(flat)
        if c.replay.prioritized_replay:
            wanted[places] = (error.detach().abs() + c.replay.priority_floor) ** c.replay.alpha
        agent.gradient_step(3e-3)
        np.testing.assert_allclose(agent.params, flat.detach().numpy(), rtol=0, atol=2e-6)
        np.testing.assert_allclose(agent.target_params, target.numpy(), rtol=0, atol=2e-6)
        torch.testing.assert_close(agent.replay.priorities(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("k", "dead"), [(1, 0), (4, 0), (16, 0), (39, 0), (39, 7)])
def test_compiled_smoothing_is_the_smoothers(k, dead):
    g = torch.Generator().manual_seed(k)
    h, z = 3 * torch.randn(40, generator=g), torch.randn(40, 8, generator=g)
    z[:dead] = 0.0
    config = SmoothingConfig(k=k, trust_region_tau=0.05, latent_dim=8)
    wanted, decision = DriftSmoother(config)(h, z)
    out, figures = np.zeros(40, np.float32), np.zeros(3)
    alike = smooth_targets(unit_nearness(z.numpy()), h.numpy(), k, 1e-3, 1.0, 0.15 * 8**-0.5, 0.05, out, figures)
    np.testing.assert_allclose(out, wanted.numpy(), atol=1e-6)
    assert figures.tolist() == pytest.approx([decision.mean_step, decision.tau_clip, decision.disagreement], abs=1e-6)
    assert alike == pytest.approx(local_structure(compute_knn_kernel(z, config), h))


def test_choices_are_the_best_or_any_as_often_as_epsilon():
    values = np.tile(np.array([[0.0, 2.0, 1.0]], np.float32), (50_000, 1))
    actions = np.zeros(50_000, np.int64)
    choose_greedily(values, np.full(50_000, 0.3), 12345, 0, actions)
    np.testing.assert_allclose(np.bincount(actions) / 50_000, [0.1, 0.8, 0.1], atol=0.006)
    choose_greedily(values, np.zeros(50_000), 12345, 0, actions)
    assert (actions == 1).all()


def test_equal_settings_give_equal_curves_and_a_curve_says_what_smoothing_did():
    plain, again = FastDQN(make()).train(), FastDQN(make()).train()
    assert plain.returns == again.returns and plain.td_variance[1:] == again.td_variance[1:]
    assert len(plain.steps) == 4 and plain.gradient_steps > 0 and plain.smoothed_share == plain.mean_step == 0.0
    smoothed = FastDQN(make(kernel_smoothing={"enabled": True})).train()
    assert smoothed.smoothed_share == 1.0 and smoothed.mean_step > 0 and smoothed.td_variance != plain.td_variance
    still = FastDQN(make(kernel_smoothing={"enabled": True, "alpha_step_init": 0.0})).train()
    assert still.returns == plain.returns, "a step of 0 changes nothing"


@pytest.mark.parametrize("gated", [False, True])
def test_how_often_a_run_is_evaluated_does_not_change_what_it_learns(gated):
    gate = {"kernel_smoothing": {"enabled": True, "td_var_min": 1.0, "disagreement_min": 1e6}} if gated else {}
    often, seldom = FastDQN(make(early_stopping={"eval_interval": 512}, **gate)), FastDQN(make(**gate))
    curve = often.train()
    assert len(curve.steps) == 8 and len(seldom.train().steps) == 4
    assert (often.params == seldom.params).all()
    assert not gated or 0 < curve.smoothed_share < 1


def test_the_gate_reads_the_variance_of_the_update_before():
    agent = FastDQN(make(replay={"batch_size": 256}))
    for _ in range(2):
        agent.collect()
        agent.learn()
    assert agent.gradient_steps == 8, "four an update"
    errors, seen = [], agent.gradient_step

    def watched(rate):
        variance = seen(rate)
        errors.append(agent._errors.astype(np.float64))
        return variance

    agent.gradient_step = watched
    agent.collect()
    agent.learn()
    assert len(errors) == 4 and agent._td_var == pytest.approx(np.mean([x.var() for x in errors]), rel=1e-4)


@pytest.mark.parametrize(("before", "smoothed"), [(0.5, False), (2.0, True)])
def test_the_gate_opens_by_that_variance_and_not_by_that_of_the_targets(before, smoothed):
    agent = FastDQN(make(kernel_smoothing={"enabled": True, "td_var_min": 1.0, "disagreement_min": 1e6}))
    agent.network.forward(np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32))
    targets = np.random.default_rng(1).normal(0.0, 0.1 if smoothed else 10.0, 64).astype(np.float32)
    agent._td_var = before
    assert (agent._smoothed_targets(targets) is not targets) == smoothed


def test_a_minibatch_of_one_has_no_neighbours():
    one = {"batch_size": 1}
    smoothed, plain = (FastDQN(make(total_steps=512, replay=one, kernel_smoothing={"enabled": on})) for on in (1, 0))
    curve = smoothed.train()
    plain.train()
    assert curve.smoothed_share == 0 and (smoothed.params == plain.params).all() and len(smoothed.params)
    assert smoothed._local_structure(0) == 1.0


def test_a_run_is_solved_where_the_last_hundred_training_episodes_reach_the_target():
    still = {"dqn": {"learning_starts": 5000, "epsilon_base": 1.0}, "replay": {"capacity": 5000}}
    curve = FastDQN(make(**still)).train(target=8.0, until_solved=True)
    assert 100 * 8 <= curve.solved_step < 4096 and curve.best_recent >= 8.0 and curve.gradient_steps == 0
    never = FastDQN(make(**still)).train(target=600.0)
    assert never.solved_step is None and 8.0 <= never.best_recent < 600.0


def test_noise_is_learned_from_and_not_reported():
    noisy = FastDQN(make(reward_noise=5.0))
    ended = noisy.collect() + noisy.collect()
    assert ended and all(x == round(x) for x in ended)
    assert float(noisy.replay.sample(64)[0]["return"].std()) > 2.0


def test_an_error_that_is_not_finite_is_told_by_name():
    agent = FastDQN(make())
    for _ in range(3):
        agent.collect()
    # An infinite return, as of rewards near the end of what a float holds: its Huber gradient is finite.
    agent.replay._fields["return"][:] = float("inf")
    with pytest.raises(NonFiniteError, match=r"temporal difference.*lower learning_rate"):
        agent.gradient_step(1e-3)


def test_what_the_fast_path_does_not_do_is_refused():
    for change in ({"apply_to": "latents"}, {"iterations": 2}, {"noise_std": 0.1}, {"free_energy_weight": 0.1}):
        with pytest.raises(ConfigError, match="navi train dqn"):
            make(kernel_smoothing={"enabled": True} | change)
    for section, name, value in (
        ("dqn", "burn_in", 16),
        ("dqn", "reward_ema_alpha", 0.5),
        ("replay", "sequence_max_share", 0.5),
        ("replay", "storage", "compact"),
        ("early_stopping", "enabled", True),
    ):
        with pytest.raises(ConfigError, match=rf"no {section}\.{name}; leave it out, or use navi train dqn"):
            make(**{section: {name: value}})
    with pytest.raises(ConfigError, match=r"latent_dim 64 is not the width 32"):
        make(kernel_smoothing={"enabled": True}, hidden=(64, 32))
    with pytest.raises(ConfigError, match="continuous"):
        FastDQN(make(task="pendulum"))
    with pytest.raises(ConfigError, match=r"capacity 255 holds 255 decisions, .* waits for 256"):
        make(replay={"capacity": 255})


SOLVED = (40_000, 95_000)
"""Decisions at which the last 100 training episodes reach 475: seeds 0–4 took 51,584–70,016."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cart_pole_is_solved_within_the_reference_runs_band(seed):
    from navi_core.bench.dqn import DQN_TARGETS, dqn_config

    curve = FastDQN(dqn_config("cart_pole", seed)).train(target=DQN_TARGETS["cart_pole"])
    assert SOLVED[0] <= curve.solved_step <= SOLVED[1] and curve.last_recent >= 490.0
    assert np.mean(curve.returns[-4:]) >= 490.0
