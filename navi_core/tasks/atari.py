"""Atari games as reference tasks, with the field's preprocessing (Machado et al. 2018).

A decision lasts four frames; of the last two the brighter pixels are kept, in grey and at 84x84; four such pictures are
seen at once. An episode is a whole game, with up to 30 idle frames before it, and an action is repeated against the
policy's will as often as the environment's id defines (a quarter of the time for -v5). All rows are stepped by the
library's own vector environment, on one thread.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.tasks.external_task import ExternalTask
from navi_core.world.interface import StepBatch

ATARI = "ALE/"
"""Prefix of a game's name in the id of its environment."""


class AtariTask(ExternalTask):
    """B games of one kind.

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
        super().__init__(num_envs, seed, first_row)
        if threads < 1:
            raise ConfigError(f"threads is {threads}; it must be at least 1")
        wanted, self._clip, self._begun = _wanted(name), clip_rewards, False
        self._games = _vector(
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
        chosen = self._numbers(actions)[:, 0].round().astype(np.int64)
        seen, paid, over, cut, _ = self._games.step(chosen)
        score = torch.from_numpy(np.asarray(paid, dtype=np.float32))
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
    """Return what the registered environment of an id is made with."""
    try:
        import ale_py
        import gymnasium
    except ImportError:
        raise ConfigError(f"gymnasium:{name} needs the Atari emulator; pip install -e '.[atari]'") from None
    gymnasium.register_envs(ale_py)
    try:
        return dict(gymnasium.spec(name).kwargs)
    except gymnasium.error.Error as error:
        raise ConfigError(f"there is no {name} ({str(error).splitlines()[0]}); ids look like ALE/Breakout-v5") from None


def _vector(game: str, num_envs: int, **options: Any) -> Any:  # noqa: ANN401 (ale-py is optional)
    """Return the vector environment of a game whose ROM is there."""
    from pathlib import Path

    from ale_py import roms
    from ale_py.vector_env import AtariVectorEnv

    path = roms.get_rom_path(game)
    if path is None or not Path(path).is_file():
        raise ConfigError(
            f"the ROM of {game} is not there; ale-py brings its ROMs since 0.9: pip install --upgrade -e '.[atari]'"
        )
    return AtariVectorEnv(game, num_envs, **options)
