"""The C++ step of an environment: one call flies, casts, reads and rewards every row.

Each row is followed from its action to its next episode by one thread, while what it has seen is at hand; the
observation's channels are written by the tracer itself. `NavigationEnv` has the same as tensor operations.
"""

import torch

from navi_core.config import REWARD_TERMS, EnvConfig
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.kernels.structs import Step, data_pointer
from navi_core.world.arguments import bad_action
from navi_core.world.counter_random import Purpose, stream_key
from navi_core.world.dynamics import Dynamics
from navi_core.world.floor.reachable import FloorView
from navi_core.world.interface import StepBatch, StepInfo
from navi_core.world.rewards import RewardTerms
from navi_core.world.sensor.faults import SensorModel
from navi_core.world.sensor.panorama import PanoramaReader
from navi_core.world.spawning.pool_tensors import SpawnPools

_WRITTEN = {
    **dict.fromkeys(("position", "yaw", "speed", "reward", "terms", "episode_return"), torch.float32),
    **dict.fromkeys(("episode_length", "scene_index", "next_scene", "slot"), torch.int64),
    **dict.fromkeys(("truncated", "void", "collided"), torch.bool),
}


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
        sensor_model: Faults and delay of the sensor.
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
        sensor_model: SensorModel,
    ) -> None:
        self._tracer, self._reader, self._sensor_model, self._episode = (
            tracer,
            reader,
            sensor_model,
            counters["episode"],
        )
        self._void_terminates = config.void_ends == "terminated"
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

    def fly(self, action: torch.Tensor, seed: int) -> StepBatch:
        """Fly one decision in every row.

        Args:
            action: (B, 4) float32.
            seed: Of the spawns.

        Raises:
            NonFiniteError: An action is NaN or infinite; nothing has moved.
        """
        step, action = self._step, action.contiguous()
        # New ones in every step: they are the caller's.
        out = {name: torch.empty(shape, dtype=dtype) for name, shape, dtype in self._outputs}
        obs = self._reader.room(len(action))
        step.spawn_key = stream_key(seed, Purpose.SPAWN) % 2**64
        step.action = data_pointer(action, torch.float32)
        for name, tensor in (*out.items(), ("obs", obs)):
            setattr(step, name, tensor.data_ptr())
        ended = self._tracer.step(step)
        if ended < 0:
            raise bad_action(action, -1 - ended)
        shown = last = obs
        if ended or self._sensor_model.corrupts:
            shown, last = self._sensor_model.follow(
                out["truncated"], out["next_scene"], out["slot"], obs, self._episode, out["episode_length"]
            )
        info: StepInfo = {
            "reward_terms": dict(zip(REWARD_TERMS, out["terms"].unbind())),
            "collision": out["collided"],
            "void": out["void"],
            "action_fault": torch.zeros(len(action), dtype=torch.bool),
            "position": out["position"],
            "yaw": out["yaw"],
            "speed": out["speed"],
            "scene_index": out["scene_index"],
            "episode_return": out["episode_return"],
            "episode_length": out["episode_length"],
        }
        terminated = out["void"] & self._void_terminates
        return StepBatch(shown, out["reward"], terminated, out["truncated"] & ~terminated, last, info)
