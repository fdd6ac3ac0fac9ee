"""Environment step: as one call of the C++ kernels, or as a tensor program.

In the C++ step each row is followed from its action to its next episode by one thread, while what it has seen is at
hand; the observation's channels are written by the tracer itself. The tensor program has fixed shapes and never looks
at a value from the host, so that a device may run ahead of it or replay the whole step as one graph.
"""

from typing import Any, cast

import torch

from navi_core.config import REWARD_TERMS, EnvConfig
from navi_core.kernels.native.library import Step, data_pointer
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.world.arguments import bad_action, finite_actions
from navi_core.world.counter_random import Purpose, stream_key
from navi_core.world.dynamics import Bodies, Dynamics, linear_speed
from navi_core.world.field import RayHits
from navi_core.world.floor.reachable import FloorView
from navi_core.world.goals import Goals
from navi_core.world.interface import StepBatch, StepInfo
from navi_core.world.rewards import RewardTerms
from navi_core.world.sensor.faults import SensorModel
from navi_core.world.sensor.panorama import PanoramaReader, SphericalSensor
from navi_core.world.spawning import BODY, SpawnPools, drone_state


class TensorStep:
    """Environment step as a tensor program of fixed shapes; updates the state in place, on any device.

    Args:
        config: Settings of the environment.
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
        bodies: Bodies of the rows.
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
        bodies: Bodies,
        goals: Goals | None,
        *,
        refuse: bool,
    ) -> None:
        self.config, self.sensor, self.dynamics, self.reader = config, sensor, dynamics, reader
        self.rewards, self.view, self.goals, self.counters = rewards, view, goals, counters
        self._pools, self._rows, self._sensor_model, self._refuse = pools, rows, sensor_model, refuse
        self._body, self._drone_state, self._bodies = body, drone_state(body), bodies
        self._void_terminates = config.void_ends == "terminated"
        self._hits = RayHits.empty(len(rows), len(sensor.directions), body.device)

    def fly(self, actions: torch.Tensor, seed: int) -> StepBatch:  # one straight program, in the order of a decision
        """Step the vectorised environment (all rows) once, with rewards, observations and autoreset.

        Args:
            actions: (B, 4) float32.
            seed: Seed of the spawns.

        Raises:
            NonFiniteError: With `refuse`, an action is NaN or infinite; nothing has moved.
        """
        c, counters = self.config, self.counters
        action, fault = finite_actions(actions, refuse=self._refuse)
        body = {name: value.squeeze(1) for name, value in self._drone_state.items()}
        scene, episode = counters["scene"].clone(), counters["episode"]
        scene_i32 = scene.to(torch.int32)  # as the field's kernels take it
        motion = self.dynamics.step(
            body["position"], body["yaw"], body["velocity"], action, body["front"], scene_i32, self._bodies.current
        )
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
            view_gain=self.view.mark(motion.position, motion.yaw, self._sensor_model.bounded(seen.reach), scene),
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
        profile = self._sensor_model.profiles(next_episode)
        self.view.begin(ends, self._pools.floor[profile, next_scene, slot])
        obs, ended = self._sensor_model.follow(ends, next_scene, slot, seen.obs, next_episode, length)
        self._body.copy_(torch.where(ends[:, None], self._pools.body[next_scene, slot], stepped))
        if self.goals is not None:
            self.goals.begin(ends, next_scene, slot, next_episode, self._drone_state["position"], seed)
        going = ~ends
        counters["episode"].copy_(next_episode)
        torch.mul(age, going, out=counters["age"])
        torch.mul(length, going, out=counters["length"])
        counters["scene"].copy_(torch.where(ends, next_scene, scene))
        self._sensor_model.take_profiles(next_episode)
        self._bodies.take(seed, next_episode)
        if self._sensor_model.oldest:
            info["scan_age"] = self._sensor_model.age(next_episode - ends.to(torch.int64), length)
        return StepBatch(obs, reward, terminated, truncated, ended, cast(StepInfo, info))


_WRITTEN = {
    **dict.fromkeys(("position", "yaw", "speed", "reward", "terms", "episode_return"), torch.float32),
    **dict.fromkeys(("episode_length", "scene_index", "next_scene", "slot"), torch.int64),
    **dict.fromkeys(("truncated", "void", "collided"), torch.bool),
}


class NativeStep:
    """Environment step as one call of the C++ kernels; updates the state in place, on the CPU.

    Args:
        tracer: The C++ kernels of the field.
        config: Settings of the environment.
        directions: (Az·El, 3) of the sensor.
        dynamics: Flies.
        reader: Reads panoramas and lends the memory of observations.
        rewards: Counts visits and weighs the terms.
        view: Keeps the seen floor.
        pools: Spawns of new episodes.
        rows: (B,) int64 numbers of the rows among those of the run.
        body: (B, 15) by `pools.BODY`, updated.
        counters: "episode", "age", "length", "scene", each (B,) int64, updated.
        sensor_model: Faults and delay of the sensor.
        bodies: Bodies of the rows.
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
        bodies: Bodies,
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
        self._bodies = bodies
        self._view, self._pools = view, pools
        self._step = Step(
            scenes=tracer.scenes(), rows=len(rows), drone=dynamics.for_kernels(),
            sensor=reader.for_kernels(directions), floors=view.for_kernels(), rewards=rewards.for_kernels(),
            row_keys=data_pointer(rows, torch.int64),
            episodes_per_scene=config.episodes_per_scene, max_steps=config.max_steps,
            void_starvation=config.void_starvation, void_grace=config.void_grace,
            pool_count=data_pointer(pools.count, torch.int64), pool_size=pools.body.shape[1],
            pool_body=data_pointer(pools.body, torch.float32), pool_floor=data_pointer(pools.floor, torch.uint8),
            body=data_pointer(body, torch.float32), seen=data_pointer(view.seen, torch.bool),
            attempted=data_pointer(self._attempted, torch.float32),
            bodies=None if bodies.current is None else data_pointer(bodies.current, torch.float32),
            view_limits=data_pointer(sensor_model.view_limits, torch.float32) if sensor_model.limited else None,
            **{name: data_pointer(counter, torch.int64) for name, counter in counters.items()},
        )  # fmt: skip

    def fly(self, action: torch.Tensor, seed: int) -> StepBatch:
        """Step the vectorised environment (all rows) once, with rewards, observations and autoreset.

        Args:
            action: (B, 4) float32.
            seed: Seed of the spawns.

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
        if ended:
            self._bodies.take(seed, self._episode)
        if ended and self._sensor_model.limited:
            begun = out["truncated"].nonzero().squeeze(1)
            profile = self._sensor_model.profiles(self._episode)[begun]
            floor = self._pools.floor[profile, out["next_scene"][begun], out["slot"][begun]]
            self._view.seen[begun] = self._view.cells(floor)
            self._sensor_model.take_profiles(self._episode)
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
        if self._sensor_model.oldest:
            flown = self._episode - out["truncated"].to(torch.int64)
            info["scan_age"] = self._sensor_model.age(flown, out["episode_length"])
        terminated = out["void"] & self._void_terminates
        return StepBatch(shown, out["reward"], terminated, out["truncated"] & ~terminated, last, info)
