"""Rollout collection loop: policy → environment → reward shaper → storage.

The collector owns the state between rollouts: the current observation, the auxiliary input, the
recurrent state and the reset flags. Episodes restart inside `env.step` (same-step autoreset), so
`obs[t+1]` of a finished row is its new episode's first observation; with `reset[t+1]` the policy
zeroes that row's state first.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from navi_core.config import GOAL_TERMS, TrainConfig
from navi_core.errors import CheckpointError
from navi_core.learn.estimators.noise import action_noise
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.auxiliary_inputs import AuxiliaryInputs
from navi_core.learn.rollout.diagnostics import non_finite_error
from navi_core.learn.rollout.execution import carried_out, flying, stage_timer
from navi_core.learn.rollout.storage import Rollout
from navi_core.policy import NavigationPolicy, RewardShaper, ShapedReward
from navi_core.policy.heads import ACTION_AXES
from navi_core.record import StageTimer
from navi_core.world.interface import Environment, StepInfo

_SUCCESS = "success_rate"
"""Metric that is a fraction of episodes: its flag is set at most once an episode, in the decision that ends it."""
COLLECTOR_METRICS = (
    *GOAL_TERMS, "intrinsic_reward", "loop_penalty", "collision_rate", "void_rate", _SUCCESS, "episode_return",
    "episode_length",
)  # fmt: skip
"""Metric names besides the reward terms; reserved, so no custom reward term may use them."""


@dataclass
class RolloutStats:
    """Statistics of one rollout, on the host: rewards, term means, episodes, timings.

    Attributes:
        rewards: (T,) mean shaped reward over rows, per decision.
        means: Mean per decision of every reward term, shaping part and flag; `success_rate` is the fraction of episodes
            that ended with success, left out where none ended.
        episodes: Episodes that ended.
        episode_return: Mean environment return of the ended episodes; NaN if none ended.
        episode_length: Mean length of the ended episodes in decisions; NaN if none ended.
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
    """Rollout collector: steps B vectorised environments with the policy and fills rollout buffers.

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
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        *,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        self.env, self.policy, self.shaper, self.config = env, policy, shaper, config
        self.device, self.workers = device, workers
        self.rows = env.num_envs
        self.total_rows = self.rows * workers.size
        self.axes = ACTION_AXES if env.spaces is None else env.spaces.axes
        self._act, self._fly = carried_out(policy.act, config, device), flying(env, config)
        self._reduce = None if workers.size == 1 else workers.sum
        self.decisions = 0
        """Decisions every row has made since training began."""
        self.obs = env.reset().to(device)
        privileged = bool(policy.heads.privileged)
        self.auxiliary = AuxiliaryInputs(env, config, self.obs, privileged=privileged, device=device)
        self.state: tuple[Tensor, ...] = tuple(x.to(device) for x in policy.initial_state(self.rows))
        self.reset = torch.ones(self.rows, dtype=torch.bool, device=device)

    @property
    def aux(self) -> Tensor:
        """Auxiliary input (B, A) of the next decision."""
        return self.auxiliary.current

    def new_rollout(self, steps: int, bptt: int) -> Rollout:
        """Allocate a rollout buffer of `steps` decisions."""
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
        """Fill a rollout buffer with the next T decisions of all rows.

        Args:
            rollout: Storage; everything in it is overwritten.
            stop: Called before every decision; the rollout is abandoned when it returns True.

        Returns:
            Statistics, or None if the rollout was abandoned. The environment has then advanced: restore a
            `state_dict` taken before the call to undo the partial rollout.

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
        # Most entries are never written, and every update rescales all of them in place: old ones would overflow.
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
            batch = self._fly(self.auxiliary.shielded(out.action, self.obs))
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
        features = self.auxiliary.update_maps(batch, done, timer)
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
            privileged = self.auxiliary.privileged(info)
            ended = self.auxiliary.at_end(aux, features, privileged, info)
            # The end of the rollout counts as a truncation: every row bootstraps from its last observation.
            last = t == rollout.steps - 1
            cut = torch.ones_like(done) if last else truncated & ~terminated
            rollout.terminal.add(
                t, cut, lambda: batch.final_obs.to(self.device), ended, out.state, lambda: self._value(rollout)
            )
            _accumulate(sums, self._terms(info, shaped))
        self.obs = batch.obs.to(self.device)
        self.auxiliary.advance(self.obs, aux, features, privileged, done)
        self.state = out.state
        self.reset = done.clone()
        self.decisions += 1

    def _value(self, rollout: Rollout) -> None:
        rollout.terminal.value_into(self.policy.value, rollout.bootstrap_values)

    @staticmethod
    def _terms(info: StepInfo, shaped: ShapedReward) -> dict[str, Tensor]:
        flags = {"collision_rate": info.get("collision"), "void_rate": info.get("void"), _SUCCESS: info.get("success")}
        rates = {name: flag.to(shaped.total.dtype) for name, flag in flags.items() if flag is not None}
        shaping = {"intrinsic_reward": shaped.intrinsic, "loop_penalty": shaped.loop_penalty}
        return info["reward_terms"] | shaping | rates

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
            raise non_finite_error(self.policy, rollout, sums, packed, (self.decisions - steps) * self.total_rows)
        rewards, (episodes, returns, lengths) = packed[:steps], packed[steps : steps + 3]
        by_term = {name: value / steps for name, value in zip(sums, packed[steps + len(counts) :])}
        if successes is not None and episodes:
            by_term[_SUCCESS] = packed[steps + 6] / episodes
        return RolloutStats(
            rewards=rewards,
            means=by_term,
            episodes=int(episodes),
            episode_return=returns / episodes if episodes else math.nan,
            episode_length=lengths / episodes if episodes else math.nan,
            seconds=time.perf_counter() - start,
            timer=timer,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the collector's full state besides the policy's weights; the caller copies it if it is kept."""
        return {
            "decisions": self.decisions,
            "obs": self.obs,
            "reset": self.reset,
            "core": list(self.state),
            "env": self.env.state_dict(),
            "shaper": self.shaper.state_dict(),
        } | self.auxiliary.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore environment, auxiliary inputs, recurrent state and shaper from a `state_dict`.

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
        self.obs, self.reset = (state[k].to(self.device).clone() for k in ("obs", "reset"))
        self.state = tuple(x.clone() for x in core)
        self.env.load_state_dict(state["env"])
        self.auxiliary.load_state_dict(state)
        self.shaper.load_state_dict(state["shaper"])
        if self.env.restarts:
            self.obs = self.env.observe().to(self.device)
            self.auxiliary.restart(self.obs)
            self.reset.fill_(True)
            # The former episodes are abandoned; new ones share no loops with them.
            self.shaper.forget(self.reset)


def _accumulate(sums: dict[str, Tensor], terms: dict[str, Tensor]) -> None:
    if not sums:
        sums.update({name: x.detach().clone().float() for name, x in terms.items()})
        return
    torch._foreach_add_(list(sums.values()), [terms[name] for name in sums])
