"""Tasks over external environments: those of Gymnasium, and Atari games with the field's preprocessing."""

import abc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.tasks.task import Task
from navi_core.world.counter_random import Purpose, words
from navi_core.world.interface import StepBatch


class ExternalTask(Task):
    """B environments of one kind, each restarted in the step in which its episode ends.

    An episode's seed is a function of (seed, row, episode). What an environment holds cannot be saved: after
    `load_state_dict` every row begins the episode after the one it was in.
    """

    restarts = True
    """`load_state_dict` begins new episodes; what was seen before it is not what is seen after."""
    _obs: np.ndarray

    @abc.abstractmethod
    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Begin new episodes in rows (B,) bool, each with its seed of (B,); return what all rows see."""

    def reset(self) -> Tensor:
        """Begin every row's first episode; returns (B, …) observations."""
        self._episode = torch.zeros_like(self.rows)
        return self._begin_all()

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of the episodes."""
        return {"episode": self._episode.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the episodes after those that `state_dict` was taken in; the observation is that of their start."""
        self._episode = state["episode"].clone() + 1
        self._begin_all()

    def observe(self) -> Tensor:
        """Return the present observations (B, …)."""
        return torch.from_numpy(self._obs.copy())

    def _stepped(self, final: np.ndarray, score: Tensor, reward: Tensor, over: Tensor, cut: Tensor) -> StepBatch:
        """Account for a step and restart what has ended.

        Args:
            final: (B, …) what is seen after the step.
            score: (B,) reward of the environment; returns are its sums.
            reward: (B,) what the learner is shown.
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
        """Return the seeds (B,) of the rows' present episodes."""
        bits: np.ndarray = words(self.seed, Purpose.TASK, self.rows, self._episode).numpy()
        return bits & (2**31 - 1)

    def _begin_all(self) -> Tensor:
        self._length = torch.zeros_like(self.rows)
        self._return = torch.zeros(self.num_envs)
        self._obs = self._begin(np.ones(self.num_envs, dtype=bool), self._seeds())
        return self.observe()


PREFIX = "gymnasium:"
"""Prefix of an environment's id in the name of a task."""


class GymnasiumEnv(ExternalTask):
    """B environments of Gymnasium of one id, stepped one after another: vectors in, a choice or a vector out.

    Args:
        name: Id of a registered environment, such as LunarLander-v3, or module:id.
        num_envs: Rows B.
        seed: Seed of the episodes.
        first_row: Number of the first row among those of the run.
        options: Of the environment.

    Raises:
        ConfigError: gymnasium or the environment is not installed, or its spaces are others than vectors and choices.
    """

    def __init__(self, name: str, num_envs: int, seed: int = 0, *, first_row: int = 0, **options: Any) -> None:  # noqa: ANN401 (keywords of the environment)
        try:
            import gymnasium
        except ImportError:
            raise ConfigError(f"{PREFIX}{name} needs gymnasium; pip install -e '.[gym]'") from None
        super().__init__(num_envs, seed, first_row=first_row)
        try:
            self._envs = [gymnasium.make(name, **options) for _ in range(num_envs)]
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(f"gymnasium cannot make {name}: {error}{_extra(gymnasium, name)}") from None
        seen, acted = self._envs[0].observation_space, self._envs[0].action_space
        if not isinstance(seen, gymnasium.spaces.Box) or len(seen.shape) != 1:
            raise ConfigError(f"{name} shows {seen}; allowed: a Box of one dimension")
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
        """Advance every row by one decision.

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
        """Close the environments."""
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


def _extra(gymnasium: ModuleType, name: str) -> str:
    """Return which extra an environment's library comes with, as the end of a message; empty where none does."""
    spec = gymnasium.registry.get(name)
    entry = str(spec.entry_point) if spec is not None else ""
    found = next((extra for extra in ("mujoco", "box2d") if f".{extra}" in entry), None)
    return f"; pip install -e '.[{found}]'" if found is not None else ""


ATARI = "ALE/"
"""Prefix of a game's name in the id of its environment."""


class AtariTask(ExternalTask):
    """B Atari games of one kind, with the field's preprocessing (Machado et al. 2018).

    A decision lasts four frames; of the last two the brighter pixels are kept, in grey and at 84x84; four such pictures
    are seen at once. An episode is a whole game, with up to 30 idle frames before it, and an action is repeated against
    the policy's will as often as the environment's id defines (a quarter of the time for -v5). All rows are stepped by
    the library's own vector environment, on one thread.

    Args:
        name: Id of a registered environment, such as ALE/Breakout-v5.
        num_envs: Rows B.
        seed: Seed of the games.
        first_row: Number of the first row among those of the run.
        clip_rewards: Show the learner the signs of rewards alone (Mnih et al. 2015); returns are of the game's score.
        fire_reset: Press FIRE at the start, where a game waits for it.
        life_ends: End an episode with every life.
        threads: Threads of the emulators.

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
        """Advance every row by one decision.

        Args:
            actions: (B, 1); numbers of the game's actions.

        Raises:
            ConfigError: The actions have another shape.
        """
        chosen = self._checked(actions)[:, 0].numpy().round().astype(np.int64)
        seen, gained, over, cut, _ = self._games.step(chosen)
        score = torch.from_numpy(np.asarray(gained, dtype=np.float32))
        reward = score.sign() if self._clip else score
        return self._stepped(np.array(seen), score, reward, torch.tensor(over), torch.tensor(cut))

    def close(self) -> None:
        """Let the emulators go."""
        del self._games

    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        if not self._begun:
            # A part can be begun anew only after the whole.
            self._games.reset(seed=0)
            self._begun = True
        seen, _ = self._games.reset(seed=seeds[rows], options={"reset_mask": rows})
        return np.array(seen)


def _wanted(name: str) -> dict[str, Any]:
    """Return what the registered environment of an id is made with, whose ROM is there."""
    try:
        import ale_py.roms
        import gymnasium
    except ImportError:
        raise ConfigError(f"gymnasium:{name} needs the Atari emulator; pip install -e '.[atari]'") from None
    gymnasium.register_envs(ale_py)
    try:
        wanted = dict(gymnasium.spec(name).kwargs)
    except gymnasium.error.Error as error:
        raise ConfigError(f"there is no {name} ({str(error).splitlines()[0]}); ids look like ALE/Breakout-v5") from None
    path = ale_py.roms.get_rom_path(wanted["game"])
    if path is None or not Path(path).is_file():
        raise ConfigError(
            f"the ROM of {wanted['game']} is not there; ale-py brings its ROMs since 0.9: "
            "pip install --upgrade -e '.[atari]'"
        )
    return wanted
