"""The step of an environment as a tensor program of fixed shapes.

It never looks at a value from the host, so that a device may run ahead of it or replay the whole step as one graph.
`native_step.NativeStep` is its C++ twin on the CPU.
"""

from typing import Any, cast

import torch

from navi_core.config import REWARD_TERMS, EnvConfig
from navi_core.world.arguments import finite_actions
from navi_core.world.dynamics import Dynamics, linear_speed
from navi_core.world.field import RayHits
from navi_core.world.floor.reachable import FloorView
from navi_core.world.goals import Goals
from navi_core.world.interface import StepBatch, StepInfo
from navi_core.world.rewards import RewardTerms
from navi_core.world.sensor.faults import SensorModel
from navi_core.world.sensor.panorama import PanoramaReader
from navi_core.world.sensor.spherical import SphericalSensor
from navi_core.world.spawning.pool_tensors import BODY, SpawnPools, drone_state


class TensorStep:
    """Steps the state of an environment in place.

    Args:
        config: Of the environment.
        sensor: Casts the rays.
        dynamics: Flies.
        reader: Reads panoramas.
        rewards: Counts visits and weighs the terms.
        view: Keeps the seen floor.
        pools: Spawns of new episodes.
        rows: (B,) int64 numbers of the rows among those of the run.
        body: (B, 15) by `BODY`, updated.
        counters: "episode", "age", "length", "scene", each (B,) int64, updated.
        sensor_model: Faults and delay of the sensor.
        goals: Goals of point-goal flight, else None.
        refuse: Raise on actions that are not finite; else they are flown as zero and flagged.
    """

    def __init__(
        self,
        config: EnvConfig,
        sensor: SphericalSensor,
        dynamics: Dynamics,
        reader: PanoramaReader,
        rewards: RewardTerms,
        view: FloorView,
        pools: SpawnPools,
        rows: torch.Tensor,
        body: torch.Tensor,
        counters: dict[str, torch.Tensor],
        sensor_model: SensorModel,
        goals: Goals | None,
        *,
        refuse: bool,
    ) -> None:
        self.config, self.sensor, self.dynamics, self.reader = config, sensor, dynamics, reader
        self.rewards, self.view, self.goals, self.counters = rewards, view, goals, counters
        self._pools, self._rows, self._sensor_model, self._refuse = pools, rows, sensor_model, refuse
        self._body, self._drone_state = body, drone_state(body)
        self._void_terminates = config.void_ends == "terminated"
        self._hits = RayHits.empty(len(rows), len(sensor.directions), body.device)

    def fly(self, actions: torch.Tensor, seed: int) -> StepBatch:  # one straight program, in the order of a decision
        """Fly one decision in every row.

        Args:
            actions: (B, 4) float32.
            seed: Of the spawns.

        Raises:
            NonFiniteError: With `refuse`, an action is NaN or infinite; nothing has moved.
        """
        c, counters = self.config, self.counters
        action, fault = finite_actions(actions, refuse=self._refuse)
        body = {name: value.squeeze(1) for name, value in self._drone_state.items()}
        scene, episode = counters["scene"].clone(), counters["episode"]
        scene_i32 = scene.to(torch.int32)  # as the field's kernels take it
        motion = self.dynamics.step(body["position"], body["yaw"], body["velocity"], action, body["front"], scene_i32)
        hits = self.sensor.cast(motion.position, motion.yaw, scene_i32, out=self._hits)
        seen = self.reader.read(hits, self.rewards.band(scene))
        clearance = self.sensor.field.distance(motion.position, scene_i32)
        terms = self.rewards.compute(
            position=motion.position,
            moved=linear_speed(motion.position - body["position"]),
            yaw=motion.yaw,
            scene_index=scene,
            stamp=episode + 1,
            clearance=clearance,
            clearance_before=body["clearance"],
            now=seen.fractions,
            before=body["seen"],
            collided=motion.collided,
            attempted_speed=motion.attempted_speed,
            view_gain=self.view.mark(motion.position, motion.yaw, seen.reach, scene),
        )
        reward, speed = self.rewards.total(terms), linear_speed(motion.velocity)
        goal_info: dict[str, Any] = {"reward_terms": {}}
        terminated = torch.zeros_like(motion.collided)
        if self.goals is not None:
            terminated, goal_info = self.goals.follow(motion.position, motion.yaw, speed, scene)
        for term in goal_info["reward_terms"].values():
            reward = reward + term
        returns = body["return"] + reward
        age, length = counters["age"] + 1, counters["length"] + 1
        void = (seen.fractions[:, 0] >= c.void_starvation) & (length > c.void_grace)
        terminated = terminated | (void & self._void_terminates)
        truncated = (void | (age >= c.max_steps)) & ~terminated
        ends = truncated | terminated
        info = {
            **goal_info,
            "reward_terms": dict(zip(REWARD_TERMS, terms.unbind(dim=1))) | goal_info["reward_terms"],
            "collision": motion.collided,
            "void": void,
            "action_fault": fault,
            "position": motion.position,
            "yaw": motion.yaw,
            "speed": speed,
            "scene_index": scene,
            "episode_return": returns,
            "episode_length": length,
        }
        state = {
            "position": motion.position,
            "yaw": motion.yaw,
            "velocity": motion.velocity,
            "front": seen.front,
            "clearance": clearance,
            "seen": seen.fractions,
            "return": returns,
        }
        stepped = torch.cat([state[name].view(-1, width) for name, width in BODY.items()], dim=1)
        next_episode = episode + ends
        next_scene, slot = self._pools.draw(seed, self._rows, next_episode, c.episodes_per_scene)
        self.view.begin(ends, next_scene, slot, self._pools.floor)
        obs, ended = self._sensor_model.follow(ends, next_scene, slot, seen.obs, next_episode, length)
        self._body.copy_(torch.where(ends[:, None], self._pools.body[next_scene, slot], stepped))
        if self.goals is not None:
            self.goals.begin(ends, next_scene, slot, next_episode, self._drone_state["position"], seed)
        going = ~ends
        counters["episode"].copy_(next_episode)
        torch.mul(age, going, out=counters["age"])
        torch.mul(length, going, out=counters["length"])
        counters["scene"].copy_(torch.where(ends, next_scene, scene))
        return StepBatch(obs, reward, terminated, truncated, ended, cast(StepInfo, info))
