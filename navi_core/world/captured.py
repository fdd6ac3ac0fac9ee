"""Environment step captured as one CUDA graph: one launch from the host for a step of all drones."""

from dataclasses import fields

import torch

from navi_core.errors import ConfigError
from navi_core.world.environment import NavigationEnv
from navi_core.world.interface import StepBatch

_WARM_UP = 3  # steps before the capture: whatever allocates or loads itself on first use has done so


class CapturedStep:
    """CUDA graph of `NavigationEnv.step`: captured once, replayed for every step.

    The environment's state stays where it is, so steps of either kind, `reset` and `load_state_dict` may be mixed;
    `reset(seed)` is the exception, for a recorded step keeps the seed it was recorded with. Recording leaves the
    environment as it found it.

    Args:
        env: An environment on a CUDA device. Nobody else may use its sensor with another number of rows.

    Raises:
        ConfigError: The environment is not on a CUDA device.
    """

    def __init__(self, env: NavigationEnv) -> None:
        if env.device.type != "cuda":
            raise ConfigError(f"a step is captured on CUDA alone, the environment is on {env.device}; call env.step")
        self.env = env
        self.actions = torch.zeros(env.num_envs, 4, device=env.device)
        """(B, 4) what the next replay flies."""
        before = env.state_dict()
        aside = torch.cuda.Stream(env.device)
        aside.wait_stream(torch.cuda.current_stream(env.device))
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                env.step(self.actions)
        torch.cuda.current_stream(env.device).wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._batch = env.step(self.actions)
        env.load_state_dict(before)

    def __call__(self, actions: torch.Tensor) -> StepBatch:
        """Step the vectorised environment as `NavigationEnv.step` does, by replaying the CUDA graph.

        Args:
            actions: (B, 4); copied.

        Returns:
            The step result, in memory that the next call overwrites: clone tensors to keep them.

        Raises:
            ConfigError: The actions have another shape.
        """
        if actions.shape != self.actions.shape:
            raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected {tuple(self.actions.shape)}")
        self.actions.copy_(actions)
        self._graph.replay()
        # A new one, since it keeps what has been derived from its tensors.
        return StepBatch(**{field.name: getattr(self._batch, field.name) for field in fields(StepBatch)})
