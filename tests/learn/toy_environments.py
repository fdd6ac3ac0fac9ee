"""Tiny real environments with the same protocol as `NavigationEnv`, to prove algorithms on."""

from __future__ import annotations

import torch
from torch import Tensor

from navi_core.world.interface import Environment, StepBatch


class ToyEnv(Environment):
    """Rows that count their age; subclasses define observations and rewards."""

    def __init__(self, num_envs: int, *, azimuth: int = 16, elevation: int = 8, seed: int = 0, length: int = 7) -> None:
        self.num_envs, self.azimuth, self.elevation, self.seed, self.length = num_envs, azimuth, elevation, seed, length
        self.age = torch.zeros(num_envs, dtype=torch.int64)
        self.episode = torch.zeros(num_envs, dtype=torch.int64)
        self.total = torch.zeros(num_envs)

    def blank(self) -> Tensor:
        return torch.zeros(self.num_envs, 3, self.azimuth, self.elevation)

    def observe(self) -> Tensor:
        raise NotImplementedError

    def pay(self, actions: Tensor) -> Tensor:
        raise NotImplementedError

    def endings(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.num_envs, dtype=torch.bool), self.age >= self.length

    def reset(self) -> Tensor:
        self.age.copy_(torch.arange(self.num_envs) % self.length)
        return self.observe()

    def step(self, actions: Tensor) -> StepBatch:
        reward = self.pay(actions)
        self.age += 1
        self.total += reward
        terminated, truncated = self.endings()
        done = terminated | truncated
        final = self.observe()
        info = {
            "reward_terms": {"pay": reward},
            "speed": torch.zeros(self.num_envs),
            "episode_return": self.total.clone(),
            "episode_length": self.age.clone(),
        }
        self.episode += done
        self.age.masked_fill_(done, 0)
        self.total.masked_fill_(done, 0.0)
        return StepBatch(self.observe(), reward, terminated, truncated, final, info)

    def state_dict(self) -> dict[str, Tensor]:
        return {"age": self.age.clone(), "episode": self.episode.clone(), "total": self.total.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.age, self.episode, self.total = (state[k].clone() for k in ("age", "episode", "total"))


class MemoryEnv(ToyEnv):
    """A sign is shown at age 0 only; at every later age the first action should have that sign.

    Without memory the best return is 0; with it, nearly `length - 1`.
    """

    def cue(self) -> Tensor:
        mixed = (torch.arange(self.num_envs) * 7919 + self.episode * 104729 + self.seed * 31) * 2654435761
        return ((mixed >> 13) & 1).float() * 2.0 - 1.0

    def observe(self) -> Tensor:
        obs = self.blank()
        first = self.age == 0
        obs[:, 0] = torch.where(first, 0.2 + 0.1 * self.cue(), torch.tensor(0.2))[:, None, None]
        obs[:, 2] = first.float()[:, None, None]
        return obs

    def pay(self, actions: Tensor) -> Tensor:
        return torch.where(self.age > 0, actions[:, 0].clamp(-1, 1) * self.cue(), torch.zeros(self.num_envs))


class MixedEndingsEnv(ToyEnv):
    """Episodes of row-dependent length that terminate, truncate or do both, inside chunks and at their edges."""

    def observe(self) -> Tensor:
        obs = self.blank()
        phase = (self.age.float() * 0.313 + self.episode.float() * 0.117 + torch.arange(self.num_envs) * 0.05) % 1.0
        obs[:, 0] = (phase[:, None, None] * 0.4 + torch.linspace(0, 0.1, self.azimuth)[:, None]).expand_as(obs[:, 0])
        obs[:, 1] = (self.age % 3).float()[:, None, None]
        obs[:, 2] = 1.0
        return obs

    def pay(self, actions: Tensor) -> Tensor:
        return actions[:, 0].clamp(-1, 1) * 0.1 + 0.05 * (self.age % 2)

    def endings(self) -> tuple[Tensor, Tensor]:
        over = self.age >= 3 + (torch.arange(self.num_envs) + self.episode) % self.length
        kind = (torch.arange(self.num_envs) + self.episode) % 3
        return over & (kind != 1), over & (kind != 0)


class FortuneEnv(MixedEndingsEnv):
    """Pays sums that fit a float, in the first row's tenth episode; the return of some decisions there does not."""

    def pay(self, actions: Tensor) -> Tensor:
        reward = super().pay(actions)
        if self.episode[0] == 9 and self.age[0] < 4:
            reward[0] = (-3e38, 1.3e38, 1.3e38, 1.3e38)[int(self.age[0])]
        return reward


class PoisonEnv(MixedEndingsEnv):
    """Pays NaN from the n-th decision on."""

    poisoned_after = 40

    def pay(self, actions: Tensor) -> Tensor:
        self.count = getattr(self, "count", 0) + 1
        reward = super().pay(actions)
        return reward * float("nan") if self.count > self.poisoned_after else reward
