"""Adapters of external environments: Gymnasium, and Atari games with the standard preprocessing."""

import abc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError, install_command
from navi_core.tasks.task import Task
from navi_core.world.counter_random import Purpose, words
from navi_core.world.interface import StepBatch


class ExternalTask(Task):
    """Abstract vectorised adapter of B external environments, with same-step autoreset.

    An episode's seed is a function of (seed, row, episode). The inner state of an environment cannot be saved: after
    `load_state_dict` every row begins the episode after its current one.
    """

    restarts = True
    """Flag: `load_state_dict` begins new episodes, so observations of before are stale."""
    _obs: np.ndarray

    @abc.abstractmethod
    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Reset the environments of rows (B,) bool, each with its seed of (B,); return the observations of all rows."""

    def reset(self) -> Tensor:
        """Reset all environments (rows) to their first episode; return observations (B, …)."""
        self._episode = torch.zeros_like(self.rows)
        return self._begin_all()

    def state_dict(self) -> dict[str, Any]:
        """Return the episode numbers, the only state that can be saved."""
        return {"episode": self._episode.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the episode numbers and begin the next episode in every row; observations are those of its start."""
        self._episode = state["episode"].clone() + 1
        self._begin_all()

    def observe(self) -> Tensor:
        """Return the current observations (B, …)."""
        return torch.from_numpy(self._obs.copy())

    def _stepped(self, final: np.ndarray, score: Tensor, reward: Tensor, over: Tensor, cut: Tensor) -> StepBatch:
        """Build the step batch: update counters, and reset the environments whose episode ended.

        Args:
            final: (B, …) observations after the step, before any reset.
            score: (B,) reward of the environment, summed to the episode return.
            reward: (B,) reward for the learner, possibly clipped.
            over: (B,) bool, terminated.
            cut: (B,) bool, truncated.
        """
        cut = cut & ~over
        done = over | cut
        info = self._account(score, reward, done)
        self._obs = final.copy()
        if bool(done.any()):
            self._obs = self._begin(done.numpy(), self._seeds())
        return StepBatch(self.observe(), reward, over, cut, torch.from_numpy(final), info)

    def _seeds(self) -> np.ndarray:
        """Return the seeds (B,) of the rows' current episodes."""
        bits: np.ndarray = words(self.seed, Purpose.TASK, self.rows, self._episode).numpy()
        return bits & (2**31 - 1)

    def _begin_all(self) -> Tensor:
        self._length = torch.zeros_like(self.rows)
        self._return = torch.zeros(self.num_envs)
        self._obs = self._begin(np.ones(self.num_envs, dtype=bool), self._seeds())
        return self.observe()


PREFIX = "gymnasium:"
"""Prefix of a task name that contains a Gymnasium environment's id."""


class GymnasiumEnv(ExternalTask):
    """Adapter of B Gymnasium environments of one id, stepped serially: vector observations, discrete or vector actions.

    Discrete observations, and tuples and dictionaries of them, become one-hot vectors.

    Args:
        name: Id of a registered environment, such as LunarLander-v3, or module:id.
        num_envs: Rows B.
        seed: Seed of the episodes.
        first_row: Number of the first row among those of the run.
        options: Keyword arguments of `gymnasium.make`.

    Raises:
        ConfigError: gymnasium or the environment is not installed, the observation space is no vector, or the action
            space neither discrete nor a bounded vector.
    """

    def __init__(self, name: str, num_envs: int, seed: int = 0, *, first_row: int = 0, **options: Any) -> None:  # noqa: ANN401 (keywords of the environment)
        try:
            import gymnasium
        except ImportError:
            raise ConfigError(f"{PREFIX}{name} needs gymnasium; {install_command('gym')}") from None
        super().__init__(num_envs, seed, first_row=first_row)
        try:
            self._envs = [_with_vectors(gymnasium, gymnasium.make(name, **options)) for _ in range(num_envs)]
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(f"gymnasium cannot make {name}: {error}{_extra(gymnasium, name)}") from None
        seen, acted = self._envs[0].observation_space, self._envs[0].action_space
        if not isinstance(seen, gymnasium.spaces.Box) or len(seen.shape) != 1:
            raise ConfigError(f"{name} shows {seen}; allowed: discrete spaces, or a Box of one dimension")
        if isinstance(acted, gymnasium.spaces.Discrete):
            choices = tuple((float(acted.start + i),) for i in range(int(acted.n)))
            self.spaces = Spaces(seen.shape[0], 1, choices)
            self._low = self._high = None
        elif isinstance(acted, gymnasium.spaces.Box) and len(acted.shape) == 1 and acted.is_bounded():
            self.spaces = Spaces(seen.shape[0], acted.shape[0])
            self._low, self._high = acted.low, acted.high
        else:
            raise ConfigError(f"{name} takes {acted}; allowed: Discrete, or a bounded Box of one dimension")
        self._obs = np.zeros((num_envs, self.spaces.observation), np.float32)
        self.reset()

    def step(self, actions: Tensor) -> StepBatch:
        """Step the vectorised environment once, with one action per environment (row).

        Args:
            actions: (B, axes); one of `spaces.choices` in each row, or numbers in (−1, 1) for the whole range.

        Raises:
            ConfigError: The actions have another shape.
        """
        given = self._checked(actions).numpy()
        final, rewards, flags = np.empty_like(self._obs), np.empty(self.num_envs, np.float32), []
        for row, env in enumerate(self._envs):
            seen, gained, over, cut, _ = env.step(self._action(given[row]))
            final[row], rewards[row] = seen, gained
            flags.append((over, cut))
        terminated, truncated = torch.tensor(flags).unbind(1)
        reward = torch.from_numpy(rewards)
        return self._stepped(final, reward, reward, terminated, truncated)

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs:
            env.close()

    def _action(self, given: np.ndarray) -> int | np.ndarray:
        if self._low is None or self._high is None:
            return round(float(given[0]))
        share = (np.clip(given, -1.0, 1.0) + 1.0) / 2.0
        action: np.ndarray = (self._low + share * (self._high - self._low)).astype(self._low.dtype)
        return action

    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        every = self._obs.copy()
        for row in np.flatnonzero(rows):
            every[row] = self._envs[row].reset(seed=int(seeds[row]))[0]
        return every


def _with_vectors(gymnasium: ModuleType, env: Any) -> Any:  # noqa: ANN401 (an environment of gymnasium)
    """Flatten the observations of an environment to vectors, unless they are one array already or cannot be."""
    seen = env.observation_space
    if isinstance(seen, gymnasium.spaces.Box) or not seen.is_np_flattenable:
        return env
    return gymnasium.wrappers.FlattenObservation(env)


def _extra(gymnasium: ModuleType, name: str) -> str:
    """Return the install hint of an environment's library (pip extra), as the end of a message; empty if unknown."""
    if name.startswith("popgym:"):
        return f"; {install_command('popgym')}"
    spec = gymnasium.registry.get(name)
    entry = str(spec.entry_point) if spec is not None else ""
    found = next((extra for extra in ("mujoco", "box2d") if f".{extra}" in entry), None)
    return f"; {install_command(found)}" if found is not None else ""


def is_atari(name: str) -> bool:
    """Return whether an id is an Atari game: `ALE/Pong-v5` (sticky actions), `PongNoFrameskip-v4` (none)."""
    return name.startswith("ALE/") or "NoFrameskip-v" in name


class AtariTask(ExternalTask):
    """Vectorised adapter of B Atari games of one kind, with the standard preprocessing (Machado et al. 2018).

    Frame skip 4, pixel-wise maximum of the last two frames, greyscale, 84x84, and a stack of four frames. An episode is
    a whole game, with up to 30 no-op frames at the start. The environment's id defines the probability of sticky
    actions (a quarter for -v5). All rows are stepped by the library's own vector environment, by default on one thread.

    Args:
        name: Id of a registered environment, such as ALE/Breakout-v5.
        num_envs: Rows B.
        seed: Seed of the games.
        first_row: Number of the first row among those of the run.
        clip_rewards: Clip the learner's rewards to their signs (Mnih et al. 2015); returns sum the game's score.
        fire_reset: Press FIRE at the start of games that wait for it.
        life_ends: End an episode with every life.
        threads: Number of emulator threads.

    Raises:
        ConfigError: ale-py is not installed, there is no such game, or its ROM is missing.
    """

    def __init__(
        self,
        name: str,
        num_envs: int,
        seed: int = 0,
        *,
        first_row: int = 0,
        clip_rewards: bool = True,
        fire_reset: bool = False,
        life_ends: bool = False,
        threads: int = 1,
    ) -> None:
        super().__init__(num_envs, seed, first_row=first_row)
        if threads < 1:
            raise ConfigError(f"threads is {threads}; it must be at least 1")
        wanted, self._clip, self._begun = _wanted(name), clip_rewards, False
        from ale_py.vector_env import AtariVectorEnv

        self._games = AtariVectorEnv(
            wanted["game"],
            num_envs,
            num_threads=threads,
            reward_clipping=False,
            use_fire_reset=fire_reset,
            episodic_life=life_ends,
            repeat_action_probability=float(wanted.get("repeat_action_probability", 0.0)),
            full_action_space=bool(wanted.get("full_action_space", False)),
            max_num_frames_per_episode=int(wanted.get("max_num_frames_per_episode", 108_000)),
        )
        shape = self._games.single_observation_space.shape
        choices = tuple((float(i),) for i in range(int(self._games.single_action_space.n)))
        self.spaces = Spaces(int(np.prod(shape)), 1, choices, shape=tuple(int(x) for x in shape))
        self.reset()

    def step(self, actions: Tensor) -> StepBatch:
        """Step the vectorised environment once, with one action per environment (row).

        Args:
            actions: (B, 1) indices of the game's actions.

        Raises:
            ConfigError: The actions have another shape.
        """
        chosen = self._checked(actions)[:, 0].numpy().round().astype(np.int64)
        seen, gained, over, cut, _ = self._games.step(chosen)
        score = torch.from_numpy(np.asarray(gained, dtype=np.float32))
        reward = score.sign() if self._clip else score
        return self._stepped(np.array(seen), score, reward, torch.tensor(over), torch.tensor(cut))

    def close(self) -> None:
        """Release the emulators."""
        del self._games

    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        if not self._begun:
            # A part can be begun anew only after the whole.
            self._games.reset(seed=0)
            self._begun = True
        seen, _ = self._games.reset(seed=seeds[rows], options={"reset_mask": rows})
        return np.array(seen)


def _wanted(name: str) -> dict[str, Any]:
    """Look up an Atari id's keyword arguments in Gymnasium's registry, and check that its ROM is installed."""
    try:
        import ale_py.roms
        import gymnasium
    except ImportError:
        raise ConfigError(f"gymnasium:{name} needs the Atari emulator; {install_command('atari')}") from None
    gymnasium.register_envs(ale_py)
    try:
        wanted = dict(gymnasium.spec(name).kwargs)
    except gymnasium.error.Error as error:
        raise ConfigError(f"there is no {name} ({str(error).splitlines()[0]}); ids look like ALE/Breakout-v5") from None
    path = ale_py.roms.get_rom_path(wanted["game"])
    if path is None or not Path(path).is_file():
        raise ConfigError(
            f"the ROM of {wanted['game']} is not there; ale-py brings its ROMs since 0.9: "
            f"{install_command('atari')} --upgrade"
        )
    return wanted
