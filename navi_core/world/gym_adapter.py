"""`Navi/Explore-v0` and `Navi/PointGoal-v0`: the environment for gymnasium, one drone or a batch.

Import this module to register them, or let gymnasium import it by its name:

    import gymnasium
    env = gymnasium.make("navi_core.world.gym_adapter:Navi/Explore-v0", family="rooms", seeds=range(4))
    envs = gymnasium.make_vec("navi_core.world.gym_adapter:Navi/PointGoal-v0", num_envs=64, scenes=["house.glb"])

Observation: Box (3, Az, El) float32 of normalised depth in [0, 1], semantic id, valid mask 0 or 1; with goals a Dict of
it, `view`, and of `goal`, Box (4,), see `navi_core.world.goals.relative_goal`. Action: Box (4,) in [−1, 1]: forward,
vertical, lateral, yaw. An episode is truncated at its time limit or in the void, which terminates it with
`void_ends: terminated`, and terminates where the drone has stopped at its goal. `reset(options=…)` says where episodes
begin: `scene` (number or name), `position` (x, y, z) [m], `yaw` [rad], `goal` (x, y, z); what is left out is drawn, and
so are the episodes that follow.

The batch resets in the same step (`AutoresetMode.SAME_STEP`): `obs` is then the next episode's first,
`info["final_obs"]` and `info["final_info"]` tell how the last one ended. `autoreset_mode` chooses another: NEXT_STEP,
which most of gymnasium's vector wrappers ask for, or DISABLED, where `options={"reset_mask": …}` names who begins. Its
first episodes are of different lengths, so that later ones do not end together (`config={"stagger": False}` begins
all alike). A process for each drone needs `vector_kwargs={"context": "spawn"}`: the ray kernels' threads do not outlive
a fork. Copies (`pickle`, `copy.deepcopy`) go on as what was copied. docs/guides/PYTHON.md has programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from navi_core.config import CorpusConfig, EnvConfig
from navi_core.errors import ConfigError, NaviError
from navi_core.scenes import Scene
from navi_core.world.arguments import shaped_actions
from navi_core.world.environment import NavigationEnv
from navi_core.world.field import Field
from navi_core.world.gym_arguments import action_tensor, env_config, found_scenes, reset_options
from navi_core.world.interface import StepBatch
from navi_core.world.sensor.rendering import panorama_image
from navi_core.world.spawning.start_poses import Places

__all__ = ["ENV_ID", "GOAL_ENV_ID", "ExploreEnv", "ExploreVectorEnv", "PointGoalEnv", "PointGoalVectorEnv"]

ENV_ID = "Navi/Explore-v0"
"""Name under which gymnasium knows the environment."""
GOAL_ENV_ID = "Navi/PointGoal-v0"
"""Name of the one whose drones fly to goals."""

Array = npt.NDArray[Any]
Info = dict[str, Any]
Obs = dict[str, Array]
"""What drones see, (B, …) by name: "view", and "goal" where they have goals."""

_GOAL: dict[str, tuple[str, ...]] = {"explore": (), "point_goal": ("goal",)}
"""What a task's drones are told beside the view."""


class ExploreVectorEnv(VectorEnv):
    """A batch of drones.

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
        self.render_mode = _known_mode(render_mode, self.metadata)
        self.metadata = self.metadata | {"autoreset_mode": _known_autoreset(autoreset_mode)}
        settings = env_config(config, self.task)
        if max_episode_steps is not None:
            settings = env_config(settings.model_dump() | {"max_steps": max_episode_steps}, self.task)
        found = found_scenes(scenes, corpus, family, seeds, resolution)
        # The places of goals are drawn by the seed an environment is made with: they are to be the same for all that
        # are made of these scenes, so that `reset(seed=…)` alone says what is flown.
        self.env = NavigationEnv(Field(found, threads=threads), num_envs, settings)
        """The environment itself."""
        self.env.reset(_settled(self, seed))
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs: Obs | None = None
        # What follows where an episode has ended, and the rows to which it has not been shown yet.
        self._next: Obs = {}
        self._waits = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:  # type: ignore[override]
        """Begin new episodes.

        Args:
            seed: A new seed, from which episodes are counted anew; without one the next episodes begin.
            options: Where they begin, for all drones or for each: `scene`, `position`, `yaw`, `goal`. `reset_mask`,
                (B,) bool, leaves all other rows as they are.
        """
        mask, places = reset_options(options, self.env)
        if mask is not None and (seed is not None or self._obs is None):
            raise ConfigError("reset_mask begins some rows anew, in the seed of a reset of all; leave out one of them")
        begins = np.ones(self.num_envs, bool) if mask is None else mask
        # A row that waits has its next episode already.
        episode = self.env.counters["episode"] + torch.from_numpy(~self._waits)
        if mask is None:
            number = 0 if seed is not None or self._obs is None else int(episode.max())
            view = _begun(self.env, number, seed, places)
        else:
            rows = torch.from_numpy(np.flatnonzero(mask))
            view = _spread(self.env.begin(rows, episode[rows], places), mask)
        super().reset(seed=seed)
        self._next = _seen(self.env, _where(begins, view, self._next.get("view")))
        shown = self._obs or {}
        self._obs = {name: _where(begins, x, shown.get(name)) for name, x in self._next.items()}
        self._waits = self._waits & ~begins
        return _told(self._obs), _masked(_pose(self.env), begins)

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, Info]:  # type: ignore[override]
        """Fly one decision in every row; actions (B, 4)."""
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
            return _told(self._obs), np.zeros(self.num_envs), *still, _masked(_pose(self.env), everyone)
        if flies.all():
            batch = self.env.step(action)
        else:
            rows = torch.from_numpy(np.flatnonzero(flies))
            batch = self.env.step_rows(rows, action[rows])
        terminated, truncated = _spread(batch.terminated, flies), _spread(batch.truncated, flies)
        ended = terminated | truncated
        self._next = _seen(self.env, _where(flies, _spread(batch.obs, flies), self._next["view"]))
        outcome, pose = _spread(_outcome(batch), flies), _pose(self.env)
        final, end = _spread(_last(batch, self.task), flies), _spread(_end(batch), flies)
        if mode is AutoresetMode.SAME_STEP:
            self._obs = self._next
            info = _masked(outcome, ~ended) | _masked(pose, everyone)
            if ended.any():
                info |= {"final_obs": self._each(final, ended), "_final_obs": ended.copy()}
                info |= {"final_info": _masked(outcome | end, ended), "_final_info": ended.copy()}
        else:
            self._obs = {name: _where(ended, final[name], x) for name, x in self._next.items()}
            self._waits = ended
            here = {name: _where(flies, end[name], value) for name, value in pose.items()}
            info = _masked(outcome, flies) | _masked(here, everyone)
        reward = _spread(batch.reward, flies).astype(np.float64)
        return _told(self._obs), reward, terminated.copy(), truncated.copy(), info

    def render(self) -> tuple[Array, ...] | None:  # type: ignore[override]
        """Return every row's panorama as (height, width, 3) uint8."""
        if self.render_mode is None:
            return None
        if self._obs is None:
            raise ConfigError("nothing to draw before reset()")
        return tuple(panorama_image(view) for view in self._obs["view"])

    def _each(self, obs: Obs, rows: npt.NDArray[np.bool_]) -> Array:
        """Return (B,) observations of some rows, one to an object; None elsewhere."""
        each = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(rows):
            each[row] = _told({name: value[row] for name, value in obs.items()})
        return each


class PointGoalVectorEnv(ExploreVectorEnv):
    """A batch of drones that fly to goals; arguments as `ExploreVectorEnv`."""

    task = "point_goal"


class ExploreEnv(gymnasium.Env):
    """One drone; arguments as `ExploreVectorEnv`, without those of a batch. Its first episode has the full length."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    task: ClassVar[str] = "explore"

    def __init__(
        self, *, render_mode: str | None = None, config: Any = None, seed: int | None = None, **arguments: Any
    ) -> None:
        for name in ("num_envs", "autoreset_mode"):
            if name in arguments:
                raise ConfigError(f"{name} is of a batch; make it by gymnasium.make_vec")
        self.render_mode = _known_mode(render_mode, self.metadata)
        whole = env_config(config, self.task).model_copy(update={"stagger": False})
        batch = PointGoalVectorEnv if self.task == "point_goal" else ExploreVectorEnv
        self.env = batch(1, config=whole, seed=_settled(self, seed), **arguments).env
        """The environment itself."""
        self.observation_space, self.action_space = _spaces(self.env)
        self._obs: Obs | None = None
        self._ended = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin a new episode: the first of a new seed, or the next.

        Args:
            seed: A new seed.
            options: Where it begins: `scene`, `position`, `yaw`, `goal`.
        """
        _, places = reset_options(options, self.env, batch=False)
        after = int(self.env.counters["episode"][0]) + (not self._ended)
        view = _begun(self.env, 0 if seed is not None or self._obs is None else after, seed, places)
        super().reset(seed=seed)
        self._obs, self._ended = {name: value[0] for name, value in _seen(self.env, view).items()}, False
        return _told(self._obs), _plain(_pose(self.env))

    def step(self, action: Array) -> tuple[Any, float, bool, bool, Info]:
        """Fly one decision; action (4,)."""
        if self._obs is None or self._ended:
            raise ConfigError(f"{'the episode has ended' if self._ended else 'no episode has begun'}; call reset()")
        batch = self.env.step(action_tensor(action)[None])
        self._obs = {"view": batch.final_obs[0].numpy()} | {
            name: _details(batch)[name][0].numpy() for name in _GOAL[self.task]
        }
        terminated, truncated = bool(batch.terminated), bool(batch.truncated)
        self._ended = terminated or truncated
        info = _plain(_spread(_outcome(batch) | _end(batch)))
        return _told(self._obs), float(batch.reward), terminated, truncated, info

    def render(self) -> Array | None:  # type: ignore[override]
        """Return the panorama as (height, width, 3) uint8."""
        if self.render_mode is None:
            return None
        if self._obs is None:
            raise ConfigError("nothing to draw before reset()")
        return panorama_image(self._obs["view"])


class PointGoalEnv(ExploreEnv):
    """One drone that flies to goals; arguments as `ExploreEnv`."""

    task = "point_goal"


def _settled(env: gymnasium.Env | VectorEnv, seed: int | None) -> int:
    """Return the seed, or gymnasium's own of this environment: rows of other vectors, unseeded, must not fly alike."""
    if seed is not None:
        return seed
    drawn = env.np_random_seed
    assert drawn is not None, "gymnasium draws it when it is first asked for"
    return drawn % 2**63


def _spaces(env: NavigationEnv) -> tuple[gymnasium.Space, Box]:
    """Return the spaces of one drone's observation and action."""
    c = env.config
    high = np.ones((3, c.azimuth_bins, c.elevation_bins), np.float32)
    high[1] = max(env.field.semantic_names)
    view, action = Box(np.zeros_like(high), high, dtype=np.float32), Box(-1.0, 1.0, (4,), np.float32)
    if env.goals is None:
        return view, action
    most = np.array([np.inf, 1.0, 1.0, np.inf], np.float32)
    goal = Box(np.array([0.0, -1.0, -1.0, -np.inf], np.float32), most, dtype=np.float32)
    return gymnasium.spaces.Dict({"view": view, "goal": goal}), action


def _known_mode(mode: str | None, metadata: Mapping[str, Any]) -> str | None:
    if mode is not None and mode not in metadata["render_modes"]:
        raise ConfigError(f"render_mode {mode!r}; allowed: None, {', '.join(map(repr, metadata['render_modes']))}")
    return mode


def _known_autoreset(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        allowed = ", ".join(repr(known.value) for known in AutoresetMode)
        raise ConfigError(f"autoreset_mode {mode!r}; allowed: {allowed}") from None


def _begun(env: NavigationEnv, episode: int, seed: int | None, places: Places) -> Array:
    """Begin an episode of that number in all rows and return (B, 3, Az, El); what is refused changes nothing."""
    if places.drawn:
        return env.reset(seed, episode=episode).numpy()
    before, state = env.seed, env.state_dict()
    try:
        env.reset(seed, episode=episode)
        return env.begin(torch.arange(env.num_envs), env.counters["episode"].clone(), places).numpy()
    except NaviError:
        env.reset(before)
        env.load_state_dict(state)
        raise


def _seen(env: NavigationEnv, view: Array) -> Obs:
    """Return what the drones see now, the next episode's first observation where one has ended."""
    goals = env.relative_goals()
    return {"view": view} if goals is None else {"view": view, "goal": goals.numpy()}


def _last(batch: StepBatch, task: str) -> dict[str, torch.Tensor]:
    """Return what the drones saw last, of the rows whose episode has ended; the others hold anything."""
    return {"view": batch.ended_obs} | {name: _details(batch)[name] for name in _GOAL[task]}


def _details(batch: StepBatch) -> Info:
    return cast(Info, batch.info)


def _told(obs: Obs) -> Any:
    """Return an observation as users get it, which is theirs: the view alone, or a dictionary."""
    mine = {name: value.copy() for name, value in obs.items()}
    return mine if len(mine) > 1 else mine["view"]


def _pose(env: NavigationEnv) -> Info:
    """Return (B, …) arrays of where the drones are now."""
    return {name: value.numpy() for name, value in cast(Info, env.poses()).items()}


def _outcome(batch: StepBatch) -> Info:
    """Return (N, …) of what a step brought."""
    names = ("collision", "void", "speed", "episode_return", "episode_length", "success", "way", "reward_terms")
    info = _details(batch)
    return {name: info[name] for name in names if name in info}


def _end(batch: StepBatch) -> dict[str, torch.Tensor]:
    """Return (N, …) of where the drones were after the step, before any reset."""
    return {name: batch.info[name] for name in ("position", "yaw", "scene_index")}


def _spread(value: Any, rows: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return (B, …) arrays of tensors (N, …) of some rows, or of a dictionary of such; zeros in the others.

    Args:
        value: The tensors.
        rows: (B,) bool, which rows; None where they are all there are.
    """
    if isinstance(value, dict):
        return {name: _spread(one, rows) for name, one in value.items()}
    some = value.numpy()
    if rows is None or rows.all():
        return some
    spread = np.zeros((len(rows), *some.shape[1:]), some.dtype)
    spread[rows] = some
    return spread


def _where(mask: npt.NDArray[np.bool_], value: Array, otherwise: Array | None) -> Array:
    """Return a value in the rows (B,) of a mask and another one elsewhere."""
    if otherwise is None or mask.all():
        return value
    return np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, otherwise)


def _masked(info: Info, mask: npt.NDArray[np.bool_]) -> Info:
    """Return a vector info: every key with a mask of the rows that have it; the others hold zeros."""
    out: Info = {}
    for name, value in info.items():
        if isinstance(value, dict):
            out[name] = _masked(value, mask)
        else:
            out[name] = np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))
        out[f"_{name}"] = mask.copy()
    return out


def _plain(info: Info) -> Info:
    """Return the first row's info; numbers as plain values."""
    return {
        name: _plain(value) if isinstance(value, dict) else (value[0].copy() if value.ndim > 1 else value[0].item())
        for name, value in info.items()
    }


for _name, _one, _many in (
    (ENV_ID, "ExploreEnv", "ExploreVectorEnv"),
    (GOAL_ENV_ID, "PointGoalEnv", "PointGoalVectorEnv"),
):
    gymnasium.register(id=_name, entry_point=f"{__name__}:{_one}", vector_entry_point=f"{__name__}:{_many}")
