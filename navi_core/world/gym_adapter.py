"""Gymnasium environments `Navi/Explore-v0` and `Navi/PointGoal-v0`: one drone or a vectorised batch.

Import this module to register them, or let gymnasium import it by its name:

    import gymnasium
    env = gymnasium.make("navi_core.world.gym_adapter:Navi/Explore-v0", family="rooms", seeds=range(4))
    envs = gymnasium.make_vec("navi_core.world.gym_adapter:Navi/PointGoal-v0", num_envs=64, scenes=["house.glb"])

Observation: Box (3, Az, El) float32 of normalised depth in [0, 1], semantic id, valid mask 0 or 1; with goals a Dict of
it, `view`, and of `goal`, Box (4,), see `navi_core.world.goals.relative_goal`. Action: Box (4,) in [−1, 1]: forward,
vertical, lateral, yaw. An episode is truncated at its time limit or in the void, which terminates it with
`void_ends: terminated`, and terminates where the drone has stopped at its goal. `reset(options=…)` sets where episodes
begin: `scene` (number or name), `position` (x, y, z) [m], `yaw` [rad], `goal` (x, y, z); what is left out is drawn, and
so are the episodes that follow.

The batch resets in the same step (`AutoresetMode.SAME_STEP`): `obs` is then the next episode's first,
`info["final_obs"]` and `info["final_info"]` hold the end of the last one. `autoreset_mode` chooses another: NEXT_STEP,
which most of gymnasium's vector wrappers ask for, or DISABLED, where `options={"reset_mask": …}` names the rows. Its
first episodes are of different lengths, so that later ones do not end together (`config={"stagger": False}` begins
all alike). A process for each drone needs `vector_kwargs={"context": "spawn"}`: the ray kernels' threads do not outlive
a fork. Copies (`pickle`, `copy.deepcopy`) go on as what was copied. docs/how-to/python.md has programs.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from navi_core.config import CorpusConfig, EnvConfig
from navi_core.errors import ConfigError
from navi_core.scenes import Scene
from navi_core.world.arguments import shaped_actions
from navi_core.world.environment import NavigationEnv
from navi_core.world.field import Field
from navi_core.world.gym_conversion import (
    Array,
    Info,
    Obs,
    action_tensor,
    begin_episodes,
    end_pose,
    env_config,
    first_row,
    found_scenes,
    gym_spaces,
    known_autoreset,
    known_render_mode,
    last_observed,
    masked_info,
    observed,
    pose_arrays,
    reset_options,
    settled_seed,
    spread,
    step_outcome,
    to_user,
    where_rows,
)
from navi_core.world.sensor.panorama import panorama_image

ENV_ID = "Navi/Explore-v0"
"""Gymnasium id of the exploration environment."""
GOAL_ENV_ID = "Navi/PointGoal-v0"
"""Gymnasium id of the point-goal environment."""


class ExploreVectorEnv(VectorEnv):
    """Gymnasium vector environment of a batch of exploring drones.

    Args:
        num_envs: Drones B.
        scenes: `Scene` objects, `.gmdag` or mesh files, folders of meshes, or generated scenes (apartment:0-11).
        corpus: A `CorpusConfig`, or its keys: root, manifest, scenes, families.
        family: Family of generated scenes; of these three give one, by default family "apartment".
        seeds: Seeds of the generated scenes.
        resolution: Compile resolution of meshes and generated scenes, which are compiled anew in memory.
        config: An `EnvConfig`, or its keys.
        seed: Seed until `reset` names another; by default one that is drawn, so that environments differ.
        threads: Threads of the ray kernels at most, see `Field`; 0 keeps numba's setting, by default every core.
        render_mode: None or "rgb_array".
        autoreset_mode: When a row whose episode has ended begins the next one: an `AutoresetMode`, or its value.
        max_episode_steps: Decisions after which an episode is truncated; by default `config.max_steps`.

    Raises:
        ConfigError: Contradicting or unknown arguments.
        SceneError: No scene, or one in which nothing can fly.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10, "autoreset_mode": AutoresetMode.SAME_STEP}
    task: ClassVar[str] = "explore"

    def __init__(
        self,
        num_envs: int = 1,
        *,
        scenes: str | Path | Scene | Sequence[str | Path | Scene] = (),
        corpus: CorpusConfig | Mapping[str, Any] | None = None,
        family: str | None = None,
        seeds: Iterable[int] = (0,),
        resolution: int = 512,
        config: EnvConfig | Mapping[str, Any] | None = None,
        seed: int | None = None,
        threads: int = 0,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
    ) -> None:
        self.render_mode = known_render_mode(render_mode, self.metadata)
        self.autoreset_mode = known_autoreset(autoreset_mode)
        self.metadata = self.metadata | {"autoreset_mode": self.autoreset_mode}
        settings = env_config(config, self.task)
        if max_episode_steps is not None:
            settings = env_config(settings.model_dump() | {"max_steps": max_episode_steps}, self.task)
        found = found_scenes(scenes, corpus, family, seeds, resolution)
        # The places of goals are drawn by the seed an environment is made with: they are to be the same for all that
        # are made of these scenes, so that `reset(seed=…)` alone decides what is flown.
        self.env = NavigationEnv(Field(found, threads=threads), num_envs, settings)
        """The environment itself."""
        self.env.reset(settled_seed(self, seed))
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = gym_spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs: Obs | None = None
        # What follows where an episode has ended, and the rows to which it has not been shown yet.
        self._next: Obs = {}
        self._waits = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset all rows, or those of a mask, to new episodes.

        Args:
            seed: A new seed, from which episodes are counted anew; without one the next episodes begin.
            options: Start poses, for all drones or for each: `scene`, `position`, `yaw`, `goal`. `reset_mask`,
                (B,) bool, leaves all other rows as they are.
        """
        mask, start = reset_options(options, self.env)
        if mask is not None and (seed is not None or self._obs is None):
            raise ConfigError("reset_mask begins some rows anew, in the seed of a reset of all; leave out one of them")
        begins = np.ones(self.num_envs, bool) if mask is None else mask
        # A row that waits has its next episode already.
        episode = self.env.counters["episode"] + torch.from_numpy(~self._waits)
        if mask is None:
            number = 0 if seed is not None or self._obs is None else int(episode.max())
            view = begin_episodes(self.env, number, seed, start)
        else:
            rows = torch.from_numpy(np.flatnonzero(mask))
            view = spread(self.env.begin(rows, episode[rows], start), mask)
        super().reset(seed=seed)
        self._next = observed(self.env, where_rows(begins, view, self._next.get("view")))
        shown = self._obs or {}
        self._obs = {name: where_rows(begins, x, shown.get(name)) for name, x in self._next.items()}
        self._waits = self._waits & ~begins
        return to_user(self._obs), masked_info(pose_arrays(self.env), begins)

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, Info]:
        """Step all sub-environments once (Gymnasium API); actions (B, 4)."""
        if self._obs is None:
            raise ConfigError("no episode has begun; call reset() before step()")
        mode, flies, everyone = self.metadata["autoreset_mode"], ~self._waits, np.ones(self.num_envs, bool)
        if mode is AutoresetMode.DISABLED and not flies.all():
            raise ConfigError(
                f"the episode has ended in rows {np.flatnonzero(self._waits).tolist()[:8]}; reset them first: "
                'options={"reset_mask": terminated | truncated}'
            )
        action = shaped_actions(action_tensor(actions), self.num_envs, self.env.device)
        if not flies.any():  # in NEXT_STEP a step in which all begin
            self._obs, self._waits = self._next, np.zeros_like(flies)
            still = np.zeros((2, self.num_envs), bool)
            return to_user(self._obs), np.zeros(self.num_envs), *still, masked_info(pose_arrays(self.env), everyone)
        if flies.all():
            batch = self.env.step(action)
        else:
            rows = torch.from_numpy(np.flatnonzero(flies))
            batch = self.env.step_rows(rows, action[rows])
        terminated, truncated = spread(batch.terminated, flies), spread(batch.truncated, flies)
        ended = terminated | truncated
        self._next = observed(self.env, where_rows(flies, spread(batch.obs, flies), self._next["view"]))
        outcome, pose = spread(step_outcome(batch), flies), pose_arrays(self.env)
        final, end = spread(last_observed(batch), flies), spread(end_pose(batch), flies)
        if mode is AutoresetMode.SAME_STEP:
            self._obs = self._next
            info = masked_info(outcome, ~ended) | masked_info(pose, everyone)
            if ended.any():
                info |= {"final_obs": self._each(final, ended), "_final_obs": ended.copy()}
                info |= {"final_info": masked_info(outcome | end, ended), "_final_info": ended.copy()}
        else:
            self._obs = {name: where_rows(ended, final[name], x) for name, x in self._next.items()}
            self._waits = ended
            here = {name: where_rows(flies, end[name], value) for name, value in pose.items()}
            info = masked_info(outcome, flies) | masked_info(here, everyone)
        reward = spread(batch.reward, flies).astype(np.float64)
        return to_user(self._obs), reward, terminated.copy(), truncated.copy(), info

    @property
    def waiting(self) -> npt.NDArray[np.bool_] | None:
        """(B,) mask of the rows whose episode has ended and waits for a reset; None before the first reset."""
        return None if self._obs is None else self._waits

    def render(self) -> tuple[Array, ...] | None:
        """Render every row's panorama as (height, width, 3) uint8."""
        if self.render_mode is None:
            return None
        if self._obs is None:
            raise ConfigError("nothing to draw before reset()")
        return tuple(panorama_image(view) for view in self._obs["view"])

    def _each(self, obs: Obs, rows: npt.NDArray[np.bool_]) -> Array:
        """Return a (B,) object array of the observations of some rows; None elsewhere."""
        each = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(rows):
            each[row] = to_user({name: value[row] for name, value in obs.items()})
        return each


class PointGoalVectorEnv(ExploreVectorEnv):
    """Gymnasium vector environment of drones that fly to goals; arguments as `ExploreVectorEnv`."""

    task = "point_goal"


class ExploreEnv(gymnasium.Env):
    """Gymnasium environment of one exploring drone; arguments as `ExploreVectorEnv`, without those of a batch."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    task: ClassVar[str] = "explore"

    def __init__(
        self, *, render_mode: str | None = None, config: Any = None, seed: int | None = None, **arguments: Any
    ) -> None:
        for name in ("num_envs", "autoreset_mode"):
            if name in arguments:
                raise ConfigError(f"{name} is of a batch; make it by gymnasium.make_vec")
        whole = env_config(config, self.task).model_copy(update={"stagger": False})
        batch = PointGoalVectorEnv if self.task == "point_goal" else ExploreVectorEnv
        self._batch = batch(
            1, config=whole, seed=settled_seed(self, seed), render_mode=render_mode,
            autoreset_mode=AutoresetMode.DISABLED, **arguments,
        )  # fmt: skip
        self.render_mode, self.env = self._batch.render_mode, self._batch.env
        """The environment itself."""
        self.observation_space, self.action_space = gym_spaces(self.env)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset to a new episode: the first of a new seed, or the next.

        Args:
            seed: A new seed.
            options: Start pose: `scene`, `position`, `yaw`, `goal`.
        """
        reset_options(options, self.env, batch=False)  # refuses a mask
        obs, info = self._batch.reset(seed=seed, options=options)
        super().reset(seed=seed)
        return first_row(obs), first_row(info)

    def step(self, action: Array) -> tuple[Any, float, bool, bool, Info]:
        """Step the environment once (Gymnasium API); action (4,)."""
        if self._batch.waiting is None or self._batch.waiting.any():
            ended = "no episode has begun" if self._batch.waiting is None else "the episode has ended"
            raise ConfigError(f"{ended}; call reset()")
        obs, reward, terminated, truncated, info = self._batch.step(action_tensor(action)[None].numpy())
        return first_row(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), first_row(info)

    def render(self) -> Array | None:
        """Render the panorama as (height, width, 3) uint8."""
        frames = self._batch.render()
        return None if frames is None else frames[0]


class PointGoalEnv(ExploreEnv):
    """Gymnasium environment of one drone that flies to goals; arguments as `ExploreEnv`."""

    task = "point_goal"


for _name, _one, _many in (
    (ENV_ID, "ExploreEnv", "ExploreVectorEnv"),
    (GOAL_ENV_ID, "PointGoalEnv", "PointGoalVectorEnv"),
):
    gymnasium.register(id=_name, entry_point=f"{__name__}:{_one}", vector_entry_point=f"{__name__}:{_many}")
