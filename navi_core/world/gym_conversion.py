"""Validated conversion between gymnasium's arguments and arrays and the environment's scenes, settings and tensors."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from navi_core.config import CompileConfig, CorpusConfig, EnvConfig, parse_config
from navi_core.errors import ConfigError, NaviError
from navi_core.scenes import Scene, SceneSource, compile_mesh, discover, generate_scene, generated_sources, load_gmdag
from navi_core.world.environment import NavigationEnv
from navi_core.world.interface import StepBatch
from navi_core.world.spawning import StartPoses

_START: dict[str, tuple[int, ...]] = {"scene": (), "position": (3,), "yaw": (), "goal": (3,)}
"""Reset options for start poses and goals, with their shapes for one drone."""


def found_scenes(
    scenes: str | Path | Scene | Sequence[str | Path | Scene],
    corpus: CorpusConfig | Mapping[str, Any] | None,
    family: str | None,
    seeds: Iterable[int],
    resolution: int,
) -> list[Scene]:
    """Load, compile or generate the scenes that the arguments name."""
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
        assert source.family is not None
        assert source.seed is not None
        return compile_mesh(generate_scene(source.family, source.seed), config)
    return load_gmdag(source.path) if source.compiled else compile_mesh(source.path, config)


def env_config(config: EnvConfig | Mapping[str, Any] | None, task: str) -> EnvConfig:
    """Parse the settings of an environment for a task (`explore` or `point_goal`)."""
    if not isinstance(config, EnvConfig | Mapping | None):
        raise ConfigError(f"config is {config!r}; allowed: an EnvConfig, or its keys as a dictionary")
    given = config.model_dump(exclude_unset=True) if isinstance(config, EnvConfig) else dict(config or {})
    reward = given.get("reward", {})
    if isinstance(reward, Mapping):  # each task has its own default terms
        given["reward"] = {"preset": task, **reward}
    parsed = parse_config(EnvConfig, {"task": task} | given)
    if parsed.task != task:
        name = {"explore": "Navi/Explore-v0", "point_goal": "Navi/PointGoal-v0"}
        raise ConfigError(f"config.task is {parsed.task}, which {name[parsed.task]} flies, and not {name[task]}")
    return parsed


def reset_options(
    options: Mapping[str, Any] | None, env: NavigationEnv, *, batch: bool = True
) -> tuple[npt.NDArray[np.bool_] | None, StartPoses]:
    """Parse gymnasium's reset options: a mask of the rows to reset (None for all), and their start poses.

    Args:
        options: `reset_mask` (batch), and of `_START`: for every row alike, or one for each.
        env: Environment to reset.
        batch: Whether the user sees a batch and may leave rows out.

    Raises:
        ConfigError: Invalid option; names it and the allowed values.
    """
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"options is {options!r}; allowed: None, or a dictionary")
    allowed = [name for name in _START if name != "goal" or env.goals is not None] + ["reset_mask"] * batch
    given = {name: value for name, value in (options or {}).items() if value is not None}
    for name in given:
        if name not in allowed:
            raise ConfigError(f"reset has no option {name!r}; allowed: {', '.join(allowed)}")
    mask = given.pop("reset_mask", None)
    if mask is not None and not (
        isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (env.num_envs,) and mask.any()
    ):
        raise ConfigError(f"reset_mask is {str(mask)[:60]!r}; allowed: a bool array ({env.num_envs},), true somewhere")
    rows = np.ones(env.num_envs, bool) if mask is None else mask
    return mask, StartPoses(**{name: _placed(name, value, env, rows) for name, value in given.items()})


def _placed(name: str, value: Any, env: NavigationEnv, rows: npt.NDArray[np.bool_]) -> torch.Tensor:
    """Broadcast a reset option, given once for all or one per row of the batch, to (N, …) of the rows to reset."""
    if name == "scene":
        value = np.vectorize(lambda scene: _scene_number(scene, env), otypes=[np.int64])(value)
    shape = _START[name]
    try:
        found = np.asarray(value)
        if found.dtype.kind not in "fiu" or found.shape not in (shape, (env.num_envs, *shape)):
            raise ValueError
    except ValueError:
        one = " or ".join(map(str, dict.fromkeys((shape or "a number", (env.num_envs, *shape)))))
        raise ConfigError(
            f"{name} is {str(value)[:60]!r}; allowed: {one} numbers, for all drones or for each"
        ) from None
    each = np.broadcast_to(found, (env.num_envs, *shape))[rows]
    return torch.from_numpy(each.astype(np.int64 if name == "scene" else np.float32))


def _scene_number(scene: Any, env: NavigationEnv) -> int:
    names = [known.name for known in env.field.scenes]
    if isinstance(scene, str):
        if names.count(scene) != 1:
            raise ConfigError(f"{names.count(scene) or 'no'} scene {scene!r}; allowed: {', '.join(names[:20])}")
        return names.index(scene)
    if isinstance(scene, int | np.integer) and not isinstance(scene, bool) and 0 <= scene < len(names):
        return int(scene)
    raise ConfigError(f"scene is {repr(scene)[:60]}; allowed: a number from 0 to {len(names) - 1}, or a name")


def action_tensor(actions: Any) -> torch.Tensor:
    """Convert a user's actions to a float32 tensor; raises `ConfigError` for anything but numbers."""
    try:
        found = np.array(actions)
        if found.dtype.kind in "fiub":
            return torch.from_numpy(found.astype(np.float32))
    except ValueError:  # rows of different lengths
        pass
    raise ConfigError(f"an action is no array of numbers: {str(actions)[:60]!r}; sample action_space for one")


def settled_seed(env: gymnasium.Env | VectorEnv, seed: int | None) -> int:
    """Return the seed, or gymnasium's own if it is None, so that unseeded environments differ."""
    if seed is not None:
        return seed
    drawn = env.np_random_seed
    assert drawn is not None, "gymnasium draws it when it is first asked for"
    return drawn % 2**63


def gym_spaces(env: NavigationEnv) -> tuple[gymnasium.Space[Any], Box]:
    """Build the gymnasium spaces of one drone's observation and action."""
    c = env.config
    high = np.ones((3, c.azimuth_bins, c.elevation_bins), np.float32)
    high[1] = max(env.field.semantic_names)
    view, action = Box(np.zeros_like(high), high, dtype=np.float32), Box(-1.0, 1.0, (4,), np.float32)
    if env.goals is None:
        return view, action
    most = np.array([np.inf, 1.0, 1.0, np.inf], np.float32)
    goal = Box(np.array([0.0, -1.0, -1.0, -np.inf], np.float32), most, dtype=np.float32)
    return gymnasium.spaces.Dict({"view": view, "goal": goal}), action


def known_render_mode(mode: str | None, metadata: Mapping[str, Any]) -> str | None:
    """Validate a render mode; an unknown one raises `ConfigError`."""
    if mode is not None and mode not in metadata["render_modes"]:
        raise ConfigError(f"render_mode {mode!r}; allowed: None, {', '.join(map(repr, metadata['render_modes']))}")
    return mode


def known_autoreset(mode: AutoresetMode | str) -> AutoresetMode:
    """Parse an autoreset mode by its value; an unknown one raises `ConfigError`."""
    try:
        return AutoresetMode(mode)
    except ValueError:
        allowed = ", ".join(repr(known.value) for known in AutoresetMode)
        raise ConfigError(f"autoreset_mode {mode!r}; allowed: {allowed}") from None


Array = npt.NDArray[Any]
Info = dict[str, Any]
Obs = dict[str, Array]
"""Observation dictionary (B, …): "view", and "goal" with goals."""


def begin_episodes(env: NavigationEnv, episode: int, seed: int | None, start: StartPoses) -> Array:
    """Reset all rows to an episode number; returns (B, 3, Az, El); on an error the state stays unchanged."""
    if start.drawn:
        return env.reset(seed, episode=episode).numpy()
    before, state = env.seed, env.state_dict()
    try:
        env.reset(seed, episode=episode)
        return env.begin(torch.arange(env.num_envs), env.counters["episode"].clone(), start).numpy()
    except NaviError:
        env.reset(before)
        env.load_state_dict(state)
        raise


def observed(env: NavigationEnv, view: Array) -> Obs:
    """Wrap the current view, and the goals if there are any, as observations; after an end, of the next episode."""
    goals = env.relative_goals()
    return {"view": view} if goals is None else {"view": view, "goal": goals.numpy()}


def last_observed(batch: StepBatch) -> dict[str, torch.Tensor]:
    """Return the final observations of the rows whose episode has ended; the other rows are undefined."""
    return {"view": batch.ended_obs} | ({"goal": batch.info["goal"]} if "goal" in batch.info else {})


def to_user(obs: Obs) -> Any:
    """Copy an observation for the gymnasium user: the view alone, or a dictionary with the goal."""
    mine = {name: value.copy() for name, value in obs.items()}
    return mine if len(mine) > 1 else mine["view"]


def pose_arrays(env: NavigationEnv) -> Info:
    """Return the current poses as NumPy arrays (B, …)."""
    return {name: value.numpy() for name, value in cast(Info, env.poses()).items()}


def step_outcome(batch: StepBatch) -> Info:
    """Select the (N, …) entries of a step's info that gymnasium users get."""
    names = ("collision", "void", "speed", "episode_return", "episode_length", "success", "way", "reward_terms")
    return {name: value for name, value in batch.info.items() if name in names}


def end_pose(batch: StepBatch) -> dict[str, torch.Tensor]:
    """Return the (N, …) poses after the step, before any reset (final poses of ended episodes)."""
    return {name: batch.info[name] for name in ("position", "yaw", "scene_index")}


def spread(value: Any, rows: npt.NDArray[np.bool_] | None = None) -> Any:
    """Scatter tensors (N, …) of some rows, or a dictionary of these, into (B, …) arrays; zeros in the other rows.

    Args:
        value: The tensors.
        rows: (B,) bool, the rows; None for all.
    """
    if isinstance(value, dict):
        return {name: spread(one, rows) for name, one in value.items()}
    some = value.numpy()
    if rows is None or rows.all():
        return some
    whole = np.zeros((len(rows), *some.shape[1:]), some.dtype)
    whole[rows] = some
    return whole


def where_rows(mask: npt.NDArray[np.bool_], value: Array, otherwise: Array | None) -> Array:
    """Merge two arrays by row (`np.where`): `value` in the rows of a mask (B,), `otherwise` elsewhere."""
    if otherwise is None or mask.all():
        return value
    return np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, otherwise)


def masked_info(info: Info, mask: npt.NDArray[np.bool_]) -> Info:
    """Build gymnasium's vector info: each key with a mask of the rows that have it; the others hold zeros."""
    out: Info = {}
    for name, value in info.items():
        if isinstance(value, dict):
            out[name] = masked_info(value, mask)
        else:
            out[name] = np.where(mask.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))
        out[f"_{name}"] = mask.copy()
    return out


def first_row(values: Any) -> Any:
    """Extract the first row of an observation, or of a vector info without its masks; numbers as plain values."""
    if isinstance(values, dict):
        return {name: first_row(value) for name, value in values.items() if not name.startswith("_")}
    return values[0].copy() if values.ndim > 1 else values[0].item()
