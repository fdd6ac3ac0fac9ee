"""Update of the policy in service: a clipped importance-weighted policy gradient with a value baseline.

The present weights compute the recurrent state of an experience from the latents since the last stored state (burn-in
without gradient in blocks of 16 decisions).
"""

import numpy as np
import torch
from torch import Tensor, nn

from navi_core.config import ContinuousTrainingConfig
from navi_core.errors import NonFiniteError
from navi_core.learn.estimators.losses import policy_loss, value_loss
from navi_core.policy import NavigationPolicy
from navi_core.policy.cores.base import State
from navi_core.service.learning.experience import Sample

_BLOCK = 16
"""Decisions through which gradients flow, and of one block of the burn-in."""


def features_of(policy: NavigationPolicy, sample: Sample) -> Tensor:
    """Return the (N, D) features of a sample's decisions under the policy's present weights.

    Args:
        policy: With gradients where they are enabled; burn-in has none.
        sample: Observations are encoded anew where it has them, else its latents are used.
    """
    numbers = sample.rows["place"].astype(np.int64)
    zero = tuple(part[0] for part in policy.initial_state(1))
    states = [trajectory.start_state(zero) for trajectory in sample.trajectories]
    state = tuple(torch.stack(parts) for parts in zip(*states))
    begins = numbers // _BLOCK * _BLOCK
    with torch.no_grad():
        for start in range(0, int(begins.max()), _BLOCK):
            rows = np.flatnonzero(begins > start)
            inputs = [sample.trajectories[row].inputs(start, start + _BLOCK) for row in rows]
            index = torch.from_numpy(rows)
            _, after = _features(policy, inputs, tuple(part[index] for part in state), _BLOCK)
            for part, new in zip(state, after):
                part[index] = new
    inputs = [
        trajectory.inputs(begin, number + 1) for trajectory, begin, number in zip(sample.trajectories, begins, numbers)
    ]
    last = torch.from_numpy(numbers - begins)
    latent = None if sample.observation is None else policy.encoder(sample.observation)
    features, _ = _features(policy, inputs, state, int(last.max()) + 1, (last, latent))
    return features[torch.arange(len(last)), last]


class PolicyUpdate:
    """Takes gradient steps on a policy.

    Args:
        policy: Changed in place; its encoder only where experiences have observations.
        config: Rates and coefficients.
        scale: Mean and deviation of the returns in the critic's units.
    """

    def __init__(
        self, policy: NavigationPolicy, config: ContinuousTrainingConfig, scale: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        self.policy, self._config, self.scale = policy, config, scale
        frozen = {id(p) for p in policy.encoder.parameters()} if config.store == "latent" else set()
        self._learned = [p for p in policy.parameters() if id(p) not in frozen]
        self._optimizer = torch.optim.Adam(self._learned, lr=config.learning_rate)

    def step(self, sample: Sample, rewards: np.ndarray) -> float:
        """Take one gradient step and return the loss.

        Args:
            sample: N experiences.
            rewards: (N,) of each.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; nothing was changed.
        """
        c = self._config
        mean, deviation = self.scale
        estimates = [
            trajectory.advantage(int(number), reward, c.discount, c.trace)
            for trajectory, number, reward in zip(sample.trajectories, sample.rows["place"], rewards.tolist())
        ]
        advantage, target = (torch.tensor(part, dtype=torch.float32) for part in zip(*estimates))
        spread = advantage.std(unbiased=False).clamp_min(1e-6) if len(estimates) > 1 else torch.ones(())
        advantage = (advantage - (advantage.mean() if len(estimates) > 1 else 0.0)) / spread
        heads = self.policy.heads
        features = features_of(self.policy, sample)
        distribution = heads.distribution(features)
        log_ratio = distribution.log_prob(sample.column("action")) - sample.column("log_prob")
        values, old = heads.value(features), (sample.column("value") - mean) / deviation
        loss = policy_loss(log_ratio.clamp(-20.0, 20.0), advantage, c.clip)
        loss = loss + c.value_coefficient * value_loss(values, (target - mean) / deviation, old, c.clip)
        loss = loss - c.entropy_coefficient * distribution.entropy().mean()
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_([p for p in self._learned if p.grad is not None], c.max_grad_norm)
        if not (bool(torch.isfinite(loss)) and bool(torch.isfinite(norm))):
            self._optimizer.zero_grad(set_to_none=True)
            raise NonFiniteError(
                "loss", f"the loss is {float(loss.detach())}, the gradient's norm {float(norm)}; no step taken"
            )
        self._optimizer.step()
        return float(loss.detach())


def _features(
    policy: NavigationPolicy,
    inputs: list[tuple[Tensor, Tensor]],
    state: State,
    length: int,
    newest: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, State]:
    """Return features (N, T, D) and states of latents of up to `length` decisions, padded behind.

    Padding behind a decision does not change it.
    """
    width = inputs[0][0].shape[1]
    latent, aux = torch.zeros(len(inputs), length, width), torch.zeros(len(inputs), length, policy.config.aux_inputs)
    for row, (part, extra) in enumerate(inputs):
        latent[row, : len(part)], aux[row, : len(part)] = part, extra
    if newest is not None and newest[1] is not None:
        latent = latent.index_put((torch.arange(len(inputs)), newest[0]), newest[1])
    going = torch.zeros(latent.shape[:2], dtype=torch.bool)
    features: tuple[Tensor, State] = policy.core(policy.joined(latent, aux, None), state, going)
    return features
