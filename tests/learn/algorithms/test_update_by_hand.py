"""Whole updates of PPO against the same written out as the formulas stand, in plain tensors."""

from __future__ import annotations

import copy

import pytest
import torch

from navi_core.learn import gae_reference
from tests.learn.builders import filled, same_but_for_kinks, small_config, small_parts, weights

GAMMA, LAM = 0.9, 0.8


class Twin:
    """PPO with one minibatch an epoch: no preallocation, no views, no in-place arithmetic."""

    def __init__(self, policy, config) -> None:
        self.policy, self.ppo = copy.deepcopy(policy), config.ppo
        self.adam = torch.optim.Adam(self.policy.parameters(), lr=config.ppo.learning_rate, eps=1e-5)
        self.mean, self.square, self.updates = 0.0, 1.0, 0
        self.discounted: list[torch.Tensor] = []

    @property
    def deviation(self) -> float:
        return (self.square - self.mean**2) ** 0.5

    def _scaled(self, rollout):
        """Return rewards in units of the deviation of all discounted returns so far."""
        done = rollout.terminated | rollout.truncated
        for t in range(rollout.steps):
            before = self.discounted[-1].masked_fill(self.done, 0.0) if self.discounted else torch.zeros(rollout.rows)
            self.discounted.append(rollout.rewards[t] + self.ppo.gamma * before)
            self.done = done[t]
        deviation = torch.stack(self.discounted).std(correction=0)
        return (rollout.rewards / deviation).clamp(-self.ppo.reward_clip, self.ppo.reward_clip)

    def _estimates(self, rollout, values, bootstrap, ratios):
        """Return advantages of mean 0 and deviation 1, and returns in raw units."""
        bounds = {"rho": self.ppo.rho_clip, "c": self.ppo.c_clip}
        clipped = {n: None if bound is None else ratios.clamp(max=bound) for n, bound in bounds.items()}
        ends = (rollout.terminated, rollout.truncated)
        advantages, returns = gae_reference(
            rollout.rewards, values, *ends, bootstrap, gamma=self.ppo.gamma, lam=self.ppo.gae_lambda, **clipped
        )
        return (advantages - advantages.mean()) / advantages.std(correction=0), returns

    def _follow(self, returns) -> None:
        """Move the critic's units, and its last layer with them: its prediction in raw units stays."""
        before = self.mean, self.deviation
        rate = 0.2 if self.updates else 1.0
        self.mean += rate * (float(returns.double().mean()) - self.mean)
        self.square += rate * (float(returns.double().square().mean()) - self.square)
        self.updates += 1
        layer = self.policy.heads.critic[-1]
        with torch.no_grad():
            layer.weight.mul_(before[1] / self.deviation)
            layer.bias.copy_((layer.bias * before[1] + before[0] - self.mean) / self.deviation)

    def update(self, rollout) -> dict[str, float]:
        ppo, reported = self.ppo, []
        if ppo.normalise_rewards:
            rollout.rewards = self._scaled(rollout)
        values = rollout.values * self.deviation + self.mean
        bootstrap = rollout.bootstrap_values * self.deviation + self.mean
        ratios = torch.ones_like(values)
        advantages, returns = self._estimates(rollout, values, bootstrap, ratios)
        explained = 1 - float((returns - values).var(correction=0) / returns.var(correction=0))
        if ppo.normalise_returns:
            self._follow(returns)
        batch = rollout.minibatch(torch.arange(rollout.sequences))
        for epoch in range(ppo.epochs):
            if epoch and (ppo.rho_clip or ppo.c_clip):
                advantages, returns = self._estimates(rollout, values, bootstrap, ratios)
            a, old, goal = (rollout.in_sequences(x) for x in (advantages, values, returns))
            old, goal = ((x - self.mean) / self.deviation for x in (old, goal))
            out = self.policy.evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
            ratio = (out.log_prob - batch.log_probs).exp()
            lower = torch.minimum(ratio * a, ratio.clamp(1 - ppo.clip, 1 + ppo.clip) * a)
            error = (out.value - goal) ** 2
            if ppo.value_clip is not None:
                near = old + (out.value - old).clamp(-ppo.value_clip, ppo.value_clip)
                error = torch.maximum(error, (near - goal) ** 2)
            parts = {"policy_loss": -lower.mean(), "value_loss": error.mean(), "entropy": out.entropy.mean()}
            loss = parts["policy_loss"] + ppo.value_coefficient * parts["value_loss"]
            loss = loss - ppo.entropy_coefficient * parts["entropy"]
            self.adam.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), ppo.max_grad_norm)
            self.adam.step()
            ratio = ratio.detach()
            reported.append({n: float(x.detach()) for n, x in parts.items()} | {"total_loss": float(loss.detach())})
            reported[-1] |= {"approx_kl": float((ratio - 1 - ratio.log()).mean()), "grad_norm": float(norm)}
            reported[-1] |= {"clip_fraction": float(((ratio - 1).abs() > ppo.clip).float().mean())}
            for i in range(rollout.sequences):
                chunk, row = divmod(i, rollout.rows)
                ratios[chunk * rollout.bptt : (chunk + 1) * rollout.bptt, row] = ratio[i]
        return {name: sum(x[name] for x in reported) / len(reported) for name in reported[0]} | {
            "explained_variance": explained
        }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalise_returns": False, "value_coefficient": 0.25},
        {"clip": 0.01, "value_clip": 0.02, "max_grad_norm": 0.1},
        {"rho_clip": 1.0, "learning_rate": 1e-2},
        {"c_clip": 1.0, "learning_rate": 1e-2},
        {"normalise_rewards": True, "reward_clip": 1.5},
    ],
    ids=["defaults", "raw returns", "clipped", "rho", "c", "scaled rewards"],
)
def test_updates_equal_the_formulas(options):
    """Two of them: the second begins with values in the critic's own units."""
    ppo = {"gamma": GAMMA, "gae_lambda": LAM, "minibatch": 24, "epochs": 3, "target_kl": None} | options
    ppo = {"entropy_coefficient": 0.05} | ppo
    collector, learner = small_parts(small_config(ppo=ppo))
    twin = Twin(learner.policy, learner.config)
    for index in range(2):
        rollout = filled(collector)
        assert rollout.terminated.any() and (rollout.truncated & ~rollout.terminated).any()
        expected = twin.update(copy.deepcopy(rollout))
        metrics = learner.update(rollout, index=index, steps=0).metrics
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=2e-3, abs=2e-5)
        assert same_but_for_kinks(weights(learner), [p.detach() for p in twin.policy.parameters()])
        # From here on both have the same weights and the same state of Adam but for roundings.
        twin.policy.load_state_dict(learner.policy.state_dict())


def test_kl_bound_stops_an_update_after_the_epoch():
    def made(**ppo) -> tuple[int, float]:
        config = small_config(ppo={"learning_rate": 3e-3, "minibatch": 12} | ppo)
        collector, learner = small_parts(config)
        stats = learner.update(filled(collector), index=0, steps=0)
        return stats.epochs, stats.metrics["approx_kl"]

    # Means over all epochs so far; those of an epoch alone follow from them.
    first, both = (made(epochs=n, target_kl=None)[1] for n in (1, 2))
    second = 2 * both - first
    assert 0 < first < both < second
    assert made(epochs=3, target_kl=0.99 * first)[0] == 1
    assert made(epochs=3, target_kl=1.01 * first)[0] == 2
    assert made(epochs=3, target_kl=0.99 * second)[0] == 2
    assert made(epochs=3, target_kl=1.01 * second)[0] == 3
