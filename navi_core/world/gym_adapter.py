"""`Navi/Explore-v0`: the environment for gymnasium, one drone or a batch.

Import this module to register it, or let gymnasium import it by its name:

    import gymnasium
    env = gymnasium.make("navi_core.world.gym_adapter:Navi/Explore-v0", family="rooms", seeds=range(4))
    envs = gymnasium.make_vec("navi_core.world.gym_adapter:Navi/Explore-v0", num_envs=64, scenes=["house.glb"])

Observation: Box (3, Az, El) float32 of normalised depth in [0, 1], semantic id, valid mask 0 or 1. Action: Box
(4,) in [−1, 1]: forward, vertical, lateral, yaw. Nothing terminates; an episode is truncated at its time limit or
in the void. The batch resets in the same step (`AutoresetMode.SAME_STEP`): `obs` is then the next episode's first,
`info["final_obs"]` and `info["final_info"]` tell how the last one ended. Its first episodes are of different lengths,
so that later ones do not end together (`config={"stagger": False}` begins all alike). Wrappers that know another reset
alone take `vectorization_mode="sync"`. A process for each drone needs `vector_kwargs={"context": "spawn"}`: the ray
kernels' threads do not outlive a fork. docs/guides/PYTHON.md has programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from navi_core.config import CompileConfig, CorpusConfig, EnvConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.scenes import Scene, SceneSource, compile_mesh, discover, generate_scene, generated_sources, load_gmdag
from navi_core.world.environment import NavigationEnv
from navi_core.world.field import Field
from navi_core.world.rendering import panorama_image
from navi_core.world.step_batch import StepBatch

__all__ = ["ENV_ID", "ExploreEnv", "ExploreVectorEnv"]

ENV_ID = "Navi/Explore-v0"
"""Name under which gymnasium knows the environment."""

Array = npt.NDArray[Any]
Info = dict[str, Any]


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

    Raises:
        ConfigError: Contradicting or unknown arguments.
        SceneError: No scene, or one in which nothing can fly.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10, "autoreset_mode": AutoresetMode.SAME_STEP}

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
    ) -> None:
        self.render_mode = _known_mode(render_mode, self.metadata)
        found = _scenes(scenes, corpus, family, seeds, resolution)
        self.env = NavigationEnv(Field(found, threads=threads), num_envs, _env_config(config), _settled(self, seed))
        """The environment itself."""
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(self.env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs: Array | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:  # type: ignore[override]
        """Begin new episodes in all rows.

        Args:
            seed: A new seed, from which episodes are counted anew; without one the next episodes begin.
            options: None, or {}.
        """
        _no_options(options)
        super().reset(seed=seed)
        later = 0 if self._obs is None else int(self.env.counters["episode"].max()) + 1
        self._obs = self.env.reset(seed, episode=later if seed is None else 0).numpy()
        everyone = np.ones(self.num_envs, bool)
        return self._obs.copy(), _masked(_pose(self.env), everyone)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:  # type: ignore[override]
        """Fly one decision in every row; actions (B, 4)."""
        _begun(self._obs)
        batch = self.env.step(_tensor(actions))
        ended = (batch.terminated | batch.truncated).numpy()
        info = _masked(_outcome(batch), ~ended) | _masked(_pose(self.env), np.ones_like(ended))
        if ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(ended):
                final[row] = batch.ended_obs[row].numpy().copy()
            info |= {"final_obs": final, "_final_obs": ended.copy()}
            info |= {"final_info": _masked(_outcome(batch) | _end(batch), ended), "_final_info": ended.copy()}
        self._obs = batch.obs.numpy()
        reward = batch.reward.numpy().astype(np.float64)
        return self._obs.copy(), reward, batch.terminated.numpy(), batch.truncated.numpy(), info

    def render(self) -> tuple[Array, ...] | None:  # type: ignore[override]
        """Return every row's panorama as (height, width, 3) uint8."""
        if self.render_mode is None:
            return None
        if self._obs is None:
            raise ConfigError("nothing to draw before reset()")
        return tuple(panorama_image(obs) for obs in self._obs)


class ExploreEnv(gymnasium.Env):
    """One drone; arguments as `ExploreVectorEnv`, without `num_envs`. Its first episode has the full length."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self, *, render_mode: str | None = None, config: Any = None, seed: int | None = None, **arguments: Any
    ) -> None:
        self.render_mode = _known_mode(render_mode, self.metadata)
        whole = _env_config(config).model_copy(update={"stagger": False})
        self.env = ExploreVectorEnv(1, config=whole, seed=_settled(self, seed), **arguments).env
        """The environment itself."""
        self.observation_space, self.action_space = _spaces(self.env)
        self._obs: Array | None = None
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Begin a new episode: the first of a new seed, or the next."""
        _no_options(options)
        super().reset(seed=seed)
        self._episode = 0 if seed is not None or self._obs is None else self._episode + 1
        self._obs = self.env.reset(seed, episode=self._episode).numpy()[0]
        return self._obs.copy(), _row(_pose(self.env))

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Fly one decision; action (4,)."""
        _begun(self._obs)
        batch = self.env.step(_tensor(action)[None])
        self._obs = batch.final_obs[0].numpy()
        info = _row(_outcome(batch) | _end(batch))
        return self._obs.copy(), float(batch.reward), bool(batch.terminated), bool(batch.truncated), info

    def render(self) -> Array | None:  # type: ignore[override]
        """Return the panorama as (height, width, 3) uint8."""
        if self.render_mode is None:
            return None
        if self._obs is None:
            raise ConfigError("nothing to draw before reset()")
        return panorama_image(self._obs)


def _scenes(
    scenes: str | Path | Scene | Sequence[str | Path | Scene],
    corpus: CorpusConfig | Mapping[str, Any] | None,
    family: str | None,
    seeds: Iterable[int],
    resolution: int,
) -> list[Scene]:
    """Return the compiled scenes that the arguments name."""
    for name, value, kinds in (
        ("scenes", scenes, str | Path | Scene | Sequence),
        ("seeds", seeds, Iterable),
        ("corpus", corpus, CorpusConfig | Mapping | None),
    ):
        if not isinstance(value, kinds):
            raise ConfigError(f"{name} is {value!r}; see the arguments in help(ExploreVectorEnv)")
    listed = [scenes] if isinstance(scenes, str | Path | Scene) else list(scenes)
    if isinstance(scenes, list) and not listed:
        raise ConfigError("scenes is an empty list; name at least one, or leave it out for a generated apartment")
    if (bool(listed) + (corpus is not None) + (family is not None)) > 1:
        raise ConfigError("scenes, corpus and family exclude each other; give one of them")
    compiling = parse_config(CompileConfig, {"resolution": resolution})
    ready = [scene for scene in listed if isinstance(scene, Scene)]
    if corpus is not None:
        chosen = corpus if isinstance(corpus, CorpusConfig) else parse_config(CorpusConfig, dict(corpus))
        sources = discover(chosen)
    elif listed:
        files = tuple(str(scene) for scene in listed if not isinstance(scene, Scene))
        sources = discover(CorpusConfig(scenes=files)) if files else []
    else:
        sources = generated_sources({family or "apartment": tuple(seeds)})
    return ready + [_compiled(source, compiling) for source in sources]


def _compiled(source: SceneSource, config: CompileConfig) -> Scene:
    if source.path is None:
        assert source.family is not None and source.seed is not None
        return compile_mesh(generate_scene(source.family, source.seed), config)
    return load_gmdag(source.path) if source.compiled else compile_mesh(source.path, config)


def _env_config(config: EnvConfig | Mapping[str, Any] | None) -> EnvConfig:
    if not isinstance(config, EnvConfig | Mapping | None):
        raise ConfigError(f"config is {config!r}; allowed: an EnvConfig, or its keys as a dictionary")
    parsed = config if isinstance(config, EnvConfig) else parse_config(EnvConfig, dict(config or {}))
    if parsed.task != "explore":
        raise ConfigError(
            f"Navi/Explore-v0 has no goals in its observation; task {parsed.task} is flown by NavigationEnv"
        )
    return parsed


def _settled(env: gymnasium.Env | VectorEnv, seed: int | None) -> int:
    """Return the seed, or gymnasium's own of this environment: rows of other vectors, unseeded, must not fly alike."""
    if seed is not None:
        return seed
    drawn = env.np_random_seed
    assert drawn is not None, "gymnasium draws it when it is first asked for"
    return drawn % 2**63


def _spaces(env: NavigationEnv) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    """Return the spaces of one drone's observation and action."""
    c = env.config
    high = np.ones((3, c.azimuth_bins, c.elevation_bins), np.float32)
    high[1] = max(env.field.semantic_names)
    observation = gymnasium.spaces.Box(np.zeros_like(high), high, dtype=np.float32)
    return observation, gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)


def _known_mode(mode: str | None, metadata: Mapping[str, Any]) -> str | None:
    if mode is not None and mode not in metadata["render_modes"]:
        raise ConfigError(f"render_mode {mode!r}; allowed: None, {', '.join(map(repr, metadata['render_modes']))}")
    return mode


def _begun(obs: Array | None) -> None:
    if obs is None:
        raise ConfigError("no episode has begun; call reset() before step()")


def _no_options(options: Info | None) -> None:
    if options:
        raise ConfigError(f"reset has no options, {options!r} was given; leave them out")


def _tensor(actions: Array) -> torch.Tensor:
    try:
        found = np.array(actions)
        if found.dtype.kind in "fiub":
            return torch.from_numpy(found.astype(np.float32))
    except ValueError:  # rows of different lengths
        pass
    raise ConfigError(f"an action is no array of numbers: {str(actions)[:60]!r}; sample action_space for one")


def _pose(env: NavigationEnv) -> Info:
    """Return (B, …) arrays of where the drones are now."""
    return {name: value.numpy().copy() for name, value in env.poses().items()}


def _outcome(batch: StepBatch) -> Info:
    """Return (B,) arrays of what a step brought."""
    names = ("collision", "void", "speed", "episode_return", "episode_length")
    terms = {name: value.numpy().copy() for name, value in batch.info["reward_terms"].items()}
    return {name: batch.info[name].numpy() for name in names} | {"reward_terms": terms}


def _end(batch: StepBatch) -> Info:
    """Return (B, …) arrays of where the drones were after the step, before any reset."""
    return {name: batch.info[name].numpy() for name in ("position", "yaw", "scene_index")}


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


def _row(info: Info) -> Info:
    """Return the first row's info; numbers as plain values."""
    return {
        name: _row(value) if isinstance(value, dict) else (value[0].copy() if value.ndim > 1 else value[0].item())
        for name, value in info.items()
    }


gymnasium.register(
    id=ENV_ID,
    entry_point="navi_core.world.gym_adapter:ExploreEnv",
    vector_entry_point="navi_core.world.gym_adapter:ExploreVectorEnv",
)
