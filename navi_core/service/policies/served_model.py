"""Loading of served models (checkpoint, registry version or alias, exported program) and batched inference runners.

A runner computes any number of drones in one batch, state in and out.
"""

import abc
import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.config import ActorConfig, DynamicsConfig, EnvConfig, PolicyConfig, ShaperConfig
from navi_core.errors import ConfigError, NaviError
from navi_core.kernels.native.library import cpu_flags
from navi_core.kernels.rays.cuda import cuda_device
from navi_core.models import (
    Checkpoint,
    ExportedPolicy,
    Registry,
    export_checkpoint,
    load_checkpoint,
    load_exported,
    load_policy,
)
from navi_core.policy import NavigationPolicy
from navi_core.policy.cores.base import State
from navi_core.record import navi_home


@dataclass(frozen=True)
class Decision:
    """Output of one batched inference for N drones.

    Attributes:
        action: (N, 4) unclamped.
        value: (N,).
        state: After this step, where the runner computes.
        log_prob: (N,) of the actions; None where the runtime has none.
        latent: (N, D) encoder output.
    """

    action: Tensor
    value: Tensor
    state: State
    latent: Tensor
    log_prob: Tensor | None = None


class Runner(abc.ABC):
    """Abstract inference runner: computes a policy for a batch of drones, recurrent state in and out.

    Args:
        config: Network configuration.
        name: Name of the policy on the wire.

    Attributes:
        metadata: Metadata of the largest exported program; empty for a policy.
    """

    def __init__(self, config: PolicyConfig, name: str) -> None:
        self.config, self.name = config, name
        self.metadata: Mapping[str, Any] = {}

    @abc.abstractmethod
    def initial_state(self, rows: int) -> State:
        """Return the zero recurrent state of `rows` drones, on the runner's device."""

    @abc.abstractmethod
    def decide(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> Decision:
        """Infer the actions of a batch of N drones.

        Args:
            obs: (N, 3, Az, El).
            aux: (N, 3) auxiliary inputs of the step before.
            state: Recurrent states of the N drones.
            reset: (N,) bool, an episode begins.
            noise: (N, 4) standard normal draws; None flies the typical action.
        """


class EagerRunner(Runner):
    """Inference runner of a checkpoint's policy in eager PyTorch.

    Args:
        policy: Moved to the device.
        name: Name of the policy on the wire.
        device: Computes it and keeps the states; all other inputs and outputs are on the host.
    """

    def __init__(self, policy: NavigationPolicy, name: str, device: torch.device | str = "cpu") -> None:
        super().__init__(policy.config, name)
        self.device = torch.device(device)
        self.policy = policy.eval().to(self.device)

    def initial_state(self, rows: int) -> State:
        """Return the zero recurrent state of `rows` drones."""
        return self.policy.initial_state(rows, self.device)

    def decide(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> Decision:
        """Infer the actions of a batch of N drones by one forward pass."""
        device = self.device
        with torch.no_grad():
            draws = None if noise is None else noise.to(device)
            out = self.policy.act(obs.to(device), aux.to(device), state, reset.to(device), draws)
        # One copy to the host, and one wait for the device.
        parts = (out.action, out.value[:, None], out.log_prob[:, None], out.embedding)
        split = torch.split(torch.cat(parts, dim=1).cpu(), [part.shape[1] for part in parts], dim=1)
        action, value, log_prob, latent = (part.contiguous() for part in split)
        return Decision(action, value.squeeze(1), out.state, latent, log_prob.squeeze(1))


class ProgramRunner(Runner):
    """Inference runner of exported programs (ONNX, AOTInductor) with fixed batch sizes; smaller batches are padded.

    Args:
        programs: Exported programs by their batch sizes.
        name: Name of the policy on the wire.
    """

    def __init__(self, programs: Mapping[int, ExportedPolicy], name: str) -> None:
        if not programs:
            raise ConfigError("a policy of no programs")
        self._programs = dict(sorted(programs.items()))
        self._max_rows = max(self._programs)
        largest = self._programs[self._max_rows]
        super().__init__(largest.config, name)
        self.metadata = largest.metadata
        self._zero = {rows: program.initial_state() for rows, program in self._programs.items()}

    def initial_state(self, rows: int) -> State:
        """Return the zero recurrent state of `rows` drones."""
        return tuple(torch.zeros(rows, *part.shape[1:]) for part in self._zero[self._max_rows])

    def decide(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> Decision:
        """Infer the actions of a batch of N drones, in chunks of at most the largest program's batch size.

        Raises:
            ConfigError: Noise is given: programs fly the typical action alone.
        """
        if noise is not None:
            raise ConfigError("an exported program flies the typical action; sample with --runtime eager")
        parts = []
        for start in range(0, len(obs), self._max_rows):
            chunk = slice(start, start + self._max_rows)
            parts.append(self._call(obs[chunk], aux[chunk], tuple(s[chunk] for s in state), reset[chunk]))
        if len(parts) == 1:
            return parts[0]
        after = tuple(torch.cat(each) for each in zip(*(p.state for p in parts)))
        action, value, latent = (torch.cat(each) for each in zip(*((p.action, p.value, p.latent) for p in parts)))
        return Decision(action, value, after, latent)

    def _call(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor) -> Decision:
        count = len(obs)
        rows = next(size for size in self._programs if size >= count)
        if rows > count:
            obs, aux, reset = (_padded(x, rows) for x in (obs, aux, reset))
            state = tuple(_padded(part, rows) for part in state)
        acted = self._programs[rows].act(obs, aux, reset, state)
        after = tuple(part[:count] for part in acted.state)
        return Decision(acted.action[:count], acted.value[:count], after, acted.latent[:count])


def _padded(tensor: Tensor, rows: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])


_LOG = logging.getLogger("navi.service")
_MAX_PROGRAMS = 64
"""Most cached files of exported programs, the last served ones: every champion leaves two."""
_SUFFIX = {"onnx": ".onnx", "aoti": ".pt2"}


@dataclass(frozen=True)
class ServedModel:
    """Model loaded for serving: runner and checkpoint.

    Attributes:
        name: Name on the wire: its version, or its file's name.
        runner: Computes it.
        checkpoint: Loaded checkpoint; None for an exported program.
        path: File of the checkpoint or program.
    """

    name: str
    runner: Runner
    checkpoint: Checkpoint | None
    path: Path

    @property
    def shaper(self) -> ShaperConfig | None:
        """Configuration of the shaper that computes a drone's auxiliary input; None where it was zero in training."""
        return None if self.checkpoint is None else self.checkpoint.row_shaper()

    @property
    def max_distance(self) -> float:
        """Range M of the sensor in training [m]."""
        if self.checkpoint is not None:
            return self.checkpoint.train_config().env.max_distance
        return float(self.runner.metadata.get("max_distance", 100.0))

    @property
    def decision_hz(self) -> float:
        """Decision rate in training [Hz]."""
        if self.checkpoint is not None:
            return self.checkpoint.decision_hz
        return float(self.runner.metadata.get("decision_hz", 10.0))

    @property
    def dynamics(self) -> DynamicsConfig:
        """The drone of the training, by which a policy's shield foresees motions."""
        if self.checkpoint is not None:
            return self.checkpoint.train_config().env.dynamics
        if self.runner.config.shield:
            raise ConfigError(f"{self.name} has a shield, which needs the drone's dynamics; serve the checkpoint")
        return DynamicsConfig()

    @property
    def curiosity(self) -> dict[str, Any]:
        """Shaper state dict with the trained curiosity (RND) predictor; empty without one."""
        return {} if self.checkpoint is None else self.checkpoint.curiosity()


def load_model(source: str, config: ActorConfig, models: Path | None = None) -> ServedModel:
    """Load a model to be served.

    Args:
        source: A .pt checkpoint, a .onnx or .pt2 program, or a version or alias of the registry.
        config: `runtime`, `device`, `threads`, `max_sessions`.
        models: The registry; None: models/ of the Navi home.

    Raises:
        CheckpointError: The file cannot be loaded.
        RegistryError: No such version or alias.
        ConfigError: The policy reads the training reward, or lacks what `config.goal` or `config.done_after` need; a
            program cannot sample, run on a GPU, or compute an auxiliary input of curiosity and loop memory; or there
            is no GPU.
    """
    exported = Path(source).suffix in _SUFFIX.values() or config.runtime != "eager"
    if config.device == "cuda":
        if exported:
            raise ConfigError(f"{source}: exported programs run on the CPU; serve a checkpoint, --runtime eager")
        cuda_device(torch.device("cuda"))
    if config.sample and exported:
        raise ConfigError(f"{source}: a program flies the typical action; sample from a checkpoint, --runtime eager")
    if Path(source).suffix in _SUFFIX.values():
        program = load_exported(source, threads=config.threads)
        name = Path(source).stem
        # Goals come over the wire and maps are drawn here; the other inputs exist in training alone.
        made_of = program.metadata.get("aux_made_of", [])
        parts = " and ".join(str(part) for part in made_of if part not in ("a goal", "a map"))
        if parts:
            runtime = next(kind for kind, suffix in _SUFFIX.items() if suffix == Path(source).suffix)
            raise ConfigError(
                f"{source}: its auxiliary input was made of {parts} in training, which a program does not hold; "
                f"serve its checkpoint, which does: navi serve CHECKPOINT.pt --runtime {runtime} (or eager)"
            )
        _check_flight(program.config, name, config)
        return ServedModel(name, ProgramRunner({program.rows: program}, name), None, Path(source))
    path, name = checkpoint_file(source, models)
    policy, checkpoint = load_policy(path)
    if policy.config.aux == "full":
        raise ConfigError(f"{name} reads the training reward (aux: full), which no service has; train with no_reward")
    _check_flight(policy.config, name, config)
    if config.runtime == "eager":
        return ServedModel(name, EagerRunner(policy, name, config.device), checkpoint, path)
    return ServedModel(name, _programs(path, name, checkpoint, config), checkpoint, path)


def _check_flight(policy: PolicyConfig, name: str, config: ActorConfig) -> None:
    if config.goal is not None and not policy.goal:
        raise ConfigError(
            f"{name} explores and reads no goal; serve it without --goal, or train with --task point_goal"
        )
    if config.done_after and not policy.place_memory:
        raise ConfigError(
            f"{name} has no occupancy map, by which it could know that nothing is left to see; "
            "next: leave out --done-after, or train it with policy.place_memory"
        )


def training_of(source: str, models: Path | None = None) -> tuple[EnvConfig, dict[str, int] | None]:
    """Return a checkpoint's training environment configuration and its semantic vocabulary (ids by name).

    Args:
        source: A .pt checkpoint, or a version or alias of the registry.
        models: The registry; None: models/ of the Navi home.

    Raises:
        CheckpointError: The file cannot be loaded.
        RegistryError: No such version or alias.
    """
    path, _ = checkpoint_file(source, models)
    checkpoint = load_checkpoint(path)
    vocabulary = checkpoint.corpus_summary.get("semantic_vocabulary")
    return checkpoint.train_config().env, dict(vocabulary) if vocabulary else None


def checkpoint_file(source: str, models: Path | None = None) -> tuple[Path, str]:
    """Resolve a checkpoint path, version or alias to the checkpoint file and the model's name."""
    path = Path(source)
    if path.suffix == ".pt" or path.is_file():
        return path, path.stem
    version = Registry(models if models is not None else navi_home() / "models").resolve(source)
    return version.path, version.version


def _programs(path: Path, name: str, checkpoint: Checkpoint, config: ActorConfig) -> ProgramRunner:
    """Export programs for batch sizes 1 and full, or reuse cached ones of the same weights; the oldest are evicted.

    Programs of another torch or another machine may not load here, or crash the process.
    """
    folder = navi_home() / "programs"
    here = hashlib.sha256(f"{torch.__version__} {cpu_flags()}".encode()).hexdigest()[:8]
    programs = {}
    for rows in sorted({1, -(-config.max_sessions // config.groups)}):
        kind = config.runtime
        file = folder / f"{checkpoint.weights_hash[:16]}-{rows}-{config.threads}-{here}-latent{_SUFFIX[kind]}"
        # Before it is loaded: another service that sweeps meanwhile keeps it.
        with suppress(OSError):  # there is none; it is another user's, or on a disk that may only be read
            os.utime(file)
        if not file.is_file():
            export_checkpoint(path, file, kind=kind, rows=rows, threads=config.threads)
        programs[rows] = load_exported(file, threads=config.threads)
    with suppress(OSError):
        used = sorted(folder.glob("*-latent.*"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in used[_MAX_PROGRAMS:]:
            with suppress(OSError):  # of another user: the others go
                file.unlink()
    return ProgramRunner(programs, name)


class AliasFollower:
    """Alias follower: polls a registry alias and loads the version it moves to, in a background thread.

    Args:
        alias: For instance "champion".
        served: Version served now.
        load: Loads a version by name.
        registry: Registry that holds the alias.
        seconds: Interval of checks [s].
    """

    def __init__(
        self, alias: str, served: str, load: Callable[[str], ServedModel], registry: Registry, seconds: float
    ) -> None:
        self._alias, self._known, self._load, self._registry, self._seconds = alias, served, load, registry, seconds
        self._ready: deque[ServedModel] = deque(maxlen=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="navi-follow", daemon=True)
        self._thread.start()

    def take(self) -> ServedModel | None:
        """Return the newly loaded version once; None while there is none."""
        return self._ready.pop() if self._ready else None

    def close(self) -> None:
        """Stop polling and join the thread."""
        self._stop.set()
        self._thread.join(5)

    def _watch(self) -> None:
        reported = ""
        while not self._stop.wait(self._seconds):
            try:
                version = self._registry.aliases().get(self._alias, self._known)
                model = None if version == self._known else self._load(version)
            except Exception as error:
                # After any error (no memory, no descriptor, a full disk) the present model serves on, and the next
                # check may succeed. A fault is reported once: a night has 20,000 checks.
                fault = str(error) if isinstance(error, NaviError) else f"{type(error).__name__}: {error}"
                if fault != reported:
                    reported = fault
                    _LOG.warning("%s cannot be followed: %s", self._alias, fault)
                continue
            reported = ""
            if model is not None:
                self._known = version
                self._ready.append(model)
