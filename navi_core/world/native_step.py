"""The C++ step of an environment: one call flies, casts, reads and rewards every row.

Each row is followed from its action to its next episode by one thread, while what it has seen is at hand; the
observation's channels are written by the tracer itself. `NavigationEnv` has the same as tensor operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from navi_core.config import REWARD_TERMS, EnvConfig
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.kernels.structs import Step, data_pointer
from navi_core.world.arguments import bad_action
from navi_core.world.counter_random import Purpose, stream_key
from navi_core.world.dynamics import Dynamics
from navi_core.world.floor.reachable import FloorView
from navi_core.world.rewards import RewardTerms
from navi_core.world.sensor.panorama import PanoramaReader
from navi_core.world.spawning.pool_tensors import SpawnPools

__all__ = ["Flown", "NativeStep"]

_WRITTEN = {
    **dict.fromkeys(("position", "yaw", "speed", "reward", "terms", "episode_return"), torch.float32),
    **dict.fromkeys(("episode_length", "scene_index", "next_scene", "slot"), torch.int64),
    **dict.fromkeys(("truncated", "void", "collided"), torch.bool),
}


@dataclass(frozen=True)
class Flown:
    """What one step wrote: new tensors, of the step itself, before any new episode.

    Attributes:
        obs: (B, 3, Az, El) float32 true observation.
        position: (B, 3) [m].
        yaw: (B,) [rad].
        speed: (B,) [m/s].
        reward: (B,) weighted.
        terms: (10, B) in the order of `REWARD_TERMS`.
        episode_return: (B,).
        episode_length: (B,) int64 decisions.
        scene_index: (B,) int64.
        next_scene: (B,) int64 where the episode is that follows the step, if it is a new one.
        slot: (B,) int64 its entry of that scene's pool.
        truncated: (B,) bool.
        void: (B,) bool.
        collided: (B,) bool.
        ended: How many episodes ended.
    """

    obs: torch.Tensor
    position: torch.Tensor
    yaw: torch.Tensor
    speed: torch.Tensor
    reward: torch.Tensor
    terms: torch.Tensor
    episode_return: torch.Tensor
    episode_length: torch.Tensor
    scene_index: torch.Tensor
    next_scene: torch.Tensor
    slot: torch.Tensor
    truncated: torch.Tensor
    void: torch.Tensor
    collided: torch.Tensor
    ended: int


class NativeStep:
    """Steps the state of an environment in place.

    Args:
        tracer: The C++ kernels of the field.
        config: Of the environment.
        directions: (Az·El, 3) of the sensor.
        dynamics: Flies.
        reader: Reads panoramas and lends the memory of observations.
        rewards: Counts visits and weighs the terms.
        view: Keeps the seen floor.
        pools: Where episodes begin.
        rows: (B,) int64 numbers of the rows among those of the run.
        body: (B, 15) by `pools.BODY`, updated.
        counters: "episode", "age", "length", "scene", each (B,) int64, updated.
    """

    def __init__(
        self,
        tracer: NativeTracer,
        config: EnvConfig,
        directions: torch.Tensor,
        dynamics: Dynamics,
        reader: PanoramaReader,
        rewards: RewardTerms,
        view: FloorView,
        pools: SpawnPools,
        rows: torch.Tensor,
        body: torch.Tensor,
        counters: dict[str, torch.Tensor],
    ) -> None:
        self._tracer, self._reader = tracer, reader
        self._attempted = torch.zeros(len(rows))
        shapes = {"position": (len(rows), 3), "terms": (len(REWARD_TERMS), len(rows))}
        self._outputs = [(name, shapes.get(name, (len(rows),)), dtype) for name, dtype in _WRITTEN.items()]
        # The struct holds addresses alone.
        self._kept = (directions, dynamics, rewards, view, pools, rows, body, counters)
        step = self._step = Step(scenes=tracer.scenes(), rows=len(rows))
        step.drone, step.sensor = dynamics.for_kernels(), reader.for_kernels(directions)
        step.floors, step.rewards = view.for_kernels(), rewards.for_kernels()
        step.row_keys = data_pointer(rows, torch.int64)
        step.episodes_per_scene, step.max_steps = config.episodes_per_scene, config.max_steps
        step.void_starvation, step.void_grace = config.void_starvation, config.void_grace
        step.pool_count = data_pointer(pools.count, torch.int64)
        step.pool_size = pools.body.shape[1]
        step.pool_body = data_pointer(pools.body, torch.float32)
        step.pool_floor = data_pointer(pools.floor, torch.uint8)
        step.body = data_pointer(body, torch.float32)
        for name, counter in counters.items():
            setattr(step, name, data_pointer(counter, torch.int64))
        step.seen = data_pointer(view.seen, torch.bool)
        step.attempted = data_pointer(self._attempted, torch.float32)

    def fly(self, action: torch.Tensor, seed: int) -> Flown:
        """Fly one decision in every row.

        Args:
            action: (B, 4) float32, contiguous.
            seed: Of the spawns.

        Raises:
            NonFiniteError: An action is NaN or infinite; nothing has moved.
        """
        step = self._step
        # New ones in every step: they are the caller's.
        written = {name: torch.empty(shape, dtype=dtype) for name, shape, dtype in self._outputs}
        written["obs"] = self._reader.room(len(action))
        step.spawn_key = stream_key(seed, Purpose.SPAWN) % 2**64
        step.action = data_pointer(action, torch.float32)
        for name, tensor in written.items():
            setattr(step, name, tensor.data_ptr())
        ended = self._tracer.step(step)
        if ended < 0:
            raise bad_action(action, -1 - ended)
        return Flown(**written, ended=ended)
