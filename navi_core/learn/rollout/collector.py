"""The rollout loop: policy → environment → shaper → storage.

The collector owns what lives between rollouts: the current observation, the auxiliary input, the
recurrent state and the reset flags. Episodes restart inside `env.step` (same-step autoreset), so
`obs[t+1]` of a finished row is its new episode's first observation; `reset[t+1]` tells the policy
to zero that row's state before it consumes it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from navi_core.config import GOAL_TERMS, TrainConfig
from navi_core.config.place_memory import PLACE_INPUTS
from navi_core.config.spaces import Spaces
from navi_core.errors import CheckpointError, NonFiniteError
from navi_core.learn.estimators.noise import action_noise
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.attribution import stage_timer
from navi_core.learn.rollout.execution import acting, flying
from navi_core.learn.rollout.storage import Rollout
from navi_core.policy.heads import ACTION_AXES
from navi_core.policy.trunk import AUX_INPUTS
from navi_core.record import StageTimer
from navi_core.world.occupancy_memory import PlaceMemory, pose_rows

__all__ = ["BESIDE_TERMS", "Collector", "Environment", "RolloutStats"]

_SUCCESS = "success_rate"
"""Told of episodes: its flag is set at most once in each, in the decision that ends it."""
BESIDE_TERMS = (
    *GOAL_TERMS, "intrinsic_reward", "loop_penalty", "collision_rate", "void_rate", _SUCCESS, "episode_return",
    "episode_length",
)  # fmt: skip
"""Metrics that are told beside the reward terms; no term of a user's own may have their names."""


class Environment(Protocol):
    """What the collector asks of an environment; `NavigationEnv` is one, reference tasks are others."""

    num_envs: int
    """Rows B. A task with vector observations or other actions than flight's also has `spaces`."""

    def reset(self) -> Tensor:
        """Start every row; returns (B,…) observations."""

    def step(self, actions: Tensor) -> Any:
        """Advance every row by one decision; returns a `StepBatch`, whose tensors may change with the next step."""

    def state_dict(self) -> dict[str, Any]:
        """Everything a row's future depends on, as tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""


@dataclass
class RolloutStats:
    """What a rollout says about the policy, on the host.

    Attributes:
        rewards: (T,) mean shaped reward over rows, per decision.
        means: Mean per decision of every reward term, shaping part and flag; `success_rate` is the share of episodes
            that ended with success, left out where none ended.
        episodes: Episodes that ended.
        episode_return: Their mean environment return; NaN if none ended.
        episode_length: Their mean length in decisions; NaN if none ended.
        seconds: Wall time of the rollout [s].
        timer: Stage timings.
    """

    rewards: list[float]
    means: dict[str, float]
    episodes: int
    episode_return: float
    episode_length: float
    seconds: float
    timer: StageTimer = field(repr=False)


class Collector:
    """Flies B rows and fills rollouts.

    Args:
        env: The environment.
        policy: `NavigationPolicy`, or anything with its `initial_state`, `act` and `value`.
        shaper: `RewardShaper`.
        config: The run's configuration: seed of the action noise, storage, execution, profiling.
        device: Training device.
        workers: Processes of the run; `env` holds this one's rows.
    """

    def __init__(
        self,
        env: Environment,
        policy: Any,
        shaper: Any,
        config: TrainConfig,
        *,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        self.env, self.policy, self.shaper, self.config = env, policy, shaper, config
        self.device, self.workers = device, workers
        self.rows = env.num_envs
        self.total_rows = self.rows * workers.size
        spaces: Spaces | None = getattr(env, "spaces", None)
        self.axes = ACTION_AXES if spaces is None else spaces.axes
        self._act, self._fly = acting(policy, config, device), flying(env, config)
        self._reduce = None if workers.size == 1 else workers.sum
        self.decisions = 0
        """Decisions every row has made since training began."""
        self.obs = env.reset().to(device)
        self._tells = bool(getattr(getattr(policy, "heads", None), "privileged", False))
        self.places = PlaceMemory.of_env(config.env, self.rows) if config.policy.place_memory else None
        """Maps of the rows' flights, for a policy that is told of them."""
        parts = [torch.zeros((self.rows, AUX_INPUTS), device=device)]
        if self.places is not None:
            parts.append(self._begin(torch.arange(self.rows)))
        parts += self._goals()
        self._public = sum(part.shape[1] for part in parts)
        if self._tells:
            parts.append(env.progress().to(device))  # type: ignore[attr-defined]
        self.aux = torch.cat(parts, dim=-1)
        """Auxiliary input of the next decision: of the step before, of places, of the goal; behind it what a privileged
        critic is told."""
        self.state: tuple[Tensor, ...] = tuple(x.to(device) for x in policy.initial_state(self.rows))
        self.reset = torch.ones(self.rows, dtype=torch.bool, device=device)

    @property
    def restarts(self) -> bool:
        """Whether the environment cannot be taken up where it was: `load_state_dict` begins new episodes."""
        return bool(getattr(self.env, "restarts", False))

    def new_rollout(self, steps: int, bptt: int) -> Rollout:
        """Allocate storage for rollouts of `steps` decisions."""
        return Rollout(
            steps,
            bptt,
            self.obs,
            self.aux,
            self.state,
            action_axes=self.axes,
            storage=self.config.storage,
            keep_ends=self.config.algorithm == "dqn",
        )

    @torch.no_grad()
    def collect(self, rollout: Rollout, stop: Callable[[], bool] | None = None) -> RolloutStats | None:
        """Fill `rollout` with the next decisions.

        Args:
            rollout: Storage; everything in it is overwritten.
            stop: Asked before every decision; the rollout is given up when it returns True.

        Returns:
            Statistics, or None if the rollout was given up. The environment has then moved on: restore a
            `state_dict` taken before the call to continue as if it had not begun.

        Raises:
            NonFiniteError: An observation, reward, value or log-probability is NaN or infinite.
        """
        timer, start = stage_timer(self.device, self.config.profile), time.perf_counter()
        noise = action_noise(
            self.config.seed,
            self.rows,
            self.decisions,
            rollout.steps,
            axes=self.axes,
            first_row=self.workers.rank * self.rows,
            device=self.device,
        )
        sums: dict[str, Tensor] = {}
        done = torch.zeros_like(self.reset)
        # Most entries are never written; an update rescales all of them in place, so that what an earlier
        # rollout left would grow from update to update until it overflowed.
        rollout.bootstrap_values.zero_()
        rollout.terminal.forget()
        for t in range(rollout.steps):
            if stop is not None and stop():
                return None
            self._decide(rollout, t, noise[t], sums, timer, done)
        with timer("bootstrap"):
            self._value(rollout)
        with timer("host_extraction"):
            return self._stats(rollout, sums, start, timer)

    def _decide(
        self, rollout: Rollout, t: int, noise: Tensor, sums: dict[str, Tensor], timer: StageTimer, done: Tensor
    ) -> None:
        with timer("storage"):
            rollout.store_chunk_state(t, self.state)
            obs = rollout.observations.write(t, self.obs)
            rollout.aux[t] = self.aux
            rollout.reset[t] = self.reset
        with timer("forward"):
            out = self._act(obs, self.aux, self.state, self.reset, noise)
        with timer("environment_step"):
            batch = self._fly(out.action)
        reward, terminated, truncated = (
            x.to(self.device, non_blocking=True) for x in (batch.reward, batch.terminated, batch.truncated)
        )
        torch.logical_or(terminated, truncated, out=done)
        info = batch.info
        shaped = self.shaper.shape(
            out.embedding,
            reward,
            info["speed"].to(self.device),
            done,
            self.decisions * self.total_rows,
            timer=timer,
            reduce=self._reduce,
        )
        places = None if self.places is None else self._look(batch, done, timer)
        with timer("storage"):
            rollout.actions[t] = out.action
            rollout.log_probs[t] = out.log_prob
            rollout.values[t] = out.value
            rollout.rewards[t] = shaped.total
            rollout.terminated[t] = terminated
            rollout.truncated[t] = truncated
            rollout.episode_return[t] = info["episode_return"]
            rollout.episode_length[t] = info["episode_length"]
            aux = torch.stack((shaped.total, shaped.loop_similarity, shaped.intrinsic), dim=-1)
            told = self._told(info) if self._tells else None
            known = [] if places is None else [places]
            known += [info["goal"].to(self.device)] if "goal" in info else []
            known += [] if told is None else [told]
            ended = torch.cat((aux, *known), dim=-1) if known else aux
            # The end of the rollout is a cut like any other: every row is valued at what it saw last.
            last = t == rollout.steps - 1
            cut = torch.ones_like(done) if last else truncated & ~terminated
            rollout.terminal.add(
                t, cut, lambda: batch.final_obs.to(self.device), ended, out.state, lambda: self._value(rollout)
            )
            _accumulate(sums, self._terms(info, shaped))
        self.obs = batch.obs.to(self.device)
        self.aux = self._next_aux(aux, places, told, done)
        self.state = out.state
        self.reset = done.clone()
        self.decisions += 1

    def _look(self, batch: Any, done: Tensor, timer: StageTimer) -> Tensor:
        """Return what the maps tell (B, PLACE_INPUTS) after a step, before any reset."""
        assert self.places is not None
        # Rows that go on see in `final_obs` what they see in `obs`.
        seen = batch.final_obs if bool(done.any()) else batch.obs
        with timer("memory_query"):
            pose = pose_rows(batch.info["position"], batch.info["yaw"])
            return self.places.follow(seen, pose, torch.arange(self.rows), batch.info.get("goal")).to(self.device)

    def _begin(self, rows: Tensor) -> Tensor:
        """Begin the maps of some rows (n,) and return what they tell."""
        assert self.places is not None
        now = self.env.poses()  # type: ignore[attr-defined]
        pose = pose_rows(now["position"], now["yaw"])
        goals = self._goals()
        goal = goals[0][rows.to(self.device)] if goals else None
        told = self.places.begin(self.obs[rows.to(self.obs.device)], rows, pose[rows.to(pose.device)], goal)
        return told.to(self.device)

    def _goals(self) -> list[Tensor]:
        """Return the goals (B, 4) of an environment that has them."""
        goals = getattr(self.env, "relative_goals", lambda: None)()
        return [] if goals is None else [goals.to(self.device)]

    def _told(self, info: dict[str, Any]) -> Tensor:
        """Return what is known (B, 3) after a step, before any reset.

        What was known before, less what was seen; with goals what the environment tells.
        """
        area, share, decisions = self.aux[:, self._public :].unbind(1)
        if "way" in info:
            way, near = info["way"].to(self.device), info["near"].to(self.device, area.dtype)
            return torch.stack((way, near, decisions + 1.0), dim=1)
        left = (area - info["reward_terms"]["view_gain"].to(self.device)).clamp_min(0.0)
        return torch.stack((left, share * left / area.clamp_min(1e-6), decisions + 1.0), dim=1)

    def _next_aux(self, aux: Tensor, places: Tensor | None, told: Tensor | None, done: Tensor) -> Tensor:
        """Return the next decision's auxiliary input, with what is known of the episodes that begin."""
        parts = [aux.masked_fill_(done[:, None], 0.0)]
        if self.places is not None and places is not None:
            rows = done.nonzero().squeeze(1)
            if len(rows):
                places[rows] = self._begin(rows.cpu())
            parts.append(places)
        parts += self._goals()
        if told is not None:
            # On the CPU a look costs nothing, and counting what was seen takes as long as a tenth of a step.
            if self.device.type != "cpu" or bool(done.any()):
                begun = self.env.progress().to(self.device)  # type: ignore[attr-defined]
                told = torch.where(done[:, None], begun, told)
            parts.append(told)
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def _value(self, rollout: Rollout) -> None:
        rollout.terminal.value_into(self.policy.value, rollout.bootstrap_values)

    @staticmethod
    def _terms(info: dict[str, Any], shaped: Any) -> dict[str, Tensor]:
        terms = dict(info["reward_terms"])
        terms["intrinsic_reward"] = shaped.intrinsic
        terms["loop_penalty"] = shaped.loop_penalty
        for flag, name in (("collision", "collision_rate"), ("void", "void_rate"), ("success", _SUCCESS)):
            if flag in info:
                terms[name] = info[flag].to(shaped.total.dtype)
        return terms

    def _stats(self, rollout: Rollout, sums: dict[str, Tensor], start: float, timer: StageTimer) -> RolloutStats:
        done = rollout.terminated | rollout.truncated
        successes = sums.pop(_SUCCESS, None)
        counts = torch.stack(
            (
                done.sum().double(),
                (rollout.episode_return * done).sum().double(),
                (rollout.episode_length * done).sum().double(),
                rollout.log_probs.sum().double(),
                rollout.values.sum().double(),
                rollout.bootstrap_values.sum().double(),
                *(() if successes is None else (successes.sum().double(),)),
            )
        )
        terms = torch.stack([x.to(self.device).mean().double() for x in sums.values()])
        means = self.workers.mean(torch.cat((rollout.rewards.mean(dim=1).double(), terms)))
        self.workers.sum(counts)
        steps = rollout.steps
        packed = torch.cat((means[:steps], counts, means[steps:])).tolist()  # the rollout's one crossing to the host
        if not all(math.isfinite(x) for x in packed):
            raise self._culprit(rollout, sums, packed)
        rewards, (episodes, returns, lengths) = packed[:steps], packed[steps : steps + 3]
        told = {name: value / steps for name, value in zip(sums, packed[steps + len(counts) :])}
        if successes is not None and episodes:
            told[_SUCCESS] = packed[steps + 6] / episodes
        return RolloutStats(
            rewards=rewards,
            means=told,
            episodes=int(episodes),
            episode_return=returns / episodes if episodes else math.nan,
            episode_length=lengths / episodes if episodes else math.nan,
            seconds=time.perf_counter() - start,
            timer=timer,
        )

    def _culprit(self, rollout: Rollout, sums: dict[str, Tensor], packed: list[float]) -> NonFiniteError:
        # In the order of cause: a bad observation also spoils the values, a bad term the reward.
        suspects: dict[str, Tensor] = {"observation": rollout.observations.by_step()}
        suspects |= {f"parameter {name}": p for name, p in self.policy.named_parameters()}
        suspects |= {f"reward term {name}": x for name, x in sums.items()}
        suspects |= {
            "reward": rollout.rewards,
            "aux": rollout.aux,
            "action": rollout.actions,
            "value": rollout.values,
            "log_prob": rollout.log_probs,
            "bootstrap_value": rollout.bootstrap_values,
            "episode_return": rollout.episode_return,
        }
        for name, tensor in suspects.items():
            bad = (~torch.isfinite(tensor)).sum()
            if bad:
                return NonFiniteError(
                    name,
                    f"{name} holds {int(bad)} NaN or infinite of {tensor.numel()} numbers in the rollout after "
                    f"{(self.decisions - rollout.steps) * self.total_rows} steps",
                )
        names = [f"mean reward of decision {t}" for t in range(rollout.steps)]
        names += ["episodes", "episode_return", "episode_length", "log_prob", "value", "bootstrap_value"]
        names += [_SUCCESS] * (len(packed) - len(names) - len(sums)) + [*sums]
        broken = {name: value for name, value in zip(names, packed) if not math.isfinite(value)}
        return NonFiniteError(
            "rollout statistics",
            f"sums over the rollout are not finite though what they add up here is: {broken}",
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next rollout depends on, besides the policy's weights; to be copied if it is kept."""
        return {
            "decisions": self.decisions,
            "obs": self.obs,
            "aux": self.aux,
            "reset": self.reset,
            "core": list(self.state),
            "env": self.env.state_dict(),
            "shaper": self.shaper.state_dict(),
        } | ({} if self.places is None else {"places": self.places.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            CheckpointError: The number of rows or the core's state differs.
        """
        core = tuple(x.to(self.device) for x in state["core"])
        if [x.shape for x in core] != [x.shape for x in self.state]:
            raise CheckpointError(
                f"the checkpoint's recurrent state has shapes {[tuple(x.shape) for x in core]}, "
                f"this run's {[tuple(x.shape) for x in self.state]}; start with --fresh"
            )
        self.decisions = int(state["decisions"])
        self.obs, self.aux, self.reset = (state[k].to(self.device).clone() for k in ("obs", "aux", "reset"))
        self.state = tuple(x.clone() for x in core)
        self.env.load_state_dict(state["env"])
        if self.places is not None:
            self.places.load_state_dict(state["places"])
        self.shaper.load_state_dict(state["shaper"])
        if self.restarts:
            self.obs = self.env.observe().to(self.device)  # type: ignore[attr-defined]
            self.aux[:, :AUX_INPUTS] = 0.0
            if self.places is not None:
                self.aux[:, AUX_INPUTS : AUX_INPUTS + PLACE_INPUTS] = self._begin(torch.arange(self.rows))
            self.reset.fill_(True)
            # The episodes that were under way are abandoned; what a new one sees is no loop of theirs.
            self.shaper.forget(self.reset)


def _accumulate(sums: dict[str, Tensor], terms: dict[str, Tensor]) -> None:
    if not sums:
        sums.update({name: x.detach().clone().float() for name, x in terms.items()})
        return
    torch._foreach_add_(list(sums.values()), [terms[name] for name in sums])
