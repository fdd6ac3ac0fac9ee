"""Inference of exported policies with ONNX Runtime and AOTInductor, and numerical parity with the PyTorch policy.

An exported policy maps (observation, auxiliary input, reset, state) to (action, value, latent, new state). The action
is the distribution's most typical one. Curiosity and loop memory compute the next auxiliary input from the latent.
Exported programs are stateless: the caller passes the recurrent state.

An AOTInductor package is machine code, and loading it runs it: load only packages you compiled.
"""

import abc
import contextlib
import json
import logging
import math
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from navi_core.config import PolicyConfig, parse_config
from navi_core.config.registry import CORE_NAMES, ENCODER_NAMES
from navi_core.errors import CheckpointError, ConfigError, as_argument, install_command, printable
from navi_core.policy import NavigationPolicy, build_policy
from navi_core.policy.cores.base import State


class Acted(NamedTuple):
    """Policy output of one step for a batch of B rows: action, value, latent, next recurrent state.

    Attributes:
        action: (B, 4) unclamped.
        value: (B,).
        latent: (B, D) encoder output.
        state: After this step.
    """

    action: Tensor
    value: Tensor
    latent: Tensor
    state: State


Act = Callable[[Tensor, Tensor, Tensor, State], Acted]
"""(obs (B, 3, Az, El), aux (B, 3), reset (B,) bool, state) → the decision."""

_RESET_SHARE = 0.03


class ActingModule(nn.Module):
    """`nn.Module` for export: a policy's deterministic step, with state tensors as explicit inputs and outputs."""

    def __init__(self, policy: NavigationPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor, aux: Tensor, reset: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return action (B, 4), value (B,), latent (B, D) and the tensors of the new recurrent state."""
        out = self.policy.act(obs, aux, state, reset, None)
        # Compiled programs trust the strides they were built for: what comes out must fit back in.
        return tuple(part.contiguous() for part in (out.action, out.value, out.embedding, *out.state))


@dataclass(frozen=True)
class Parity:
    """Numerical parity of two runtimes: largest differences over a rollout, each with its own state fed back.

    Values, latents and states above 1 are compared relatively.

    Attributes:
        steps: Decisions compared.
        resets: Episodes that began after the first.
        action: Largest difference of an action.
        value: Largest difference of a value.
        latent: Largest difference of a latent.
        state: Largest difference of a state.
    """

    steps: int
    resets: int
    action: float
    value: float
    latent: float
    state: float

    @property
    def worst(self) -> float:
        """Largest difference of all; NaN where either runtime gave NaN."""
        return max((self.action, self.value, self.latent, self.state), key=lambda x: (x != x, x))


def example_inputs(policy: NavigationPolicy, rows: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Build example inputs of an `ActingModule`: obs (B, 3, Az, El), aux (B, 3), reset (B,), state."""
    generator = torch.Generator().manual_seed(seed)
    config = policy.config
    obs = torch.rand(rows, 3, config.azimuth_bins, config.elevation_bins, generator=generator)
    obs[:, 1] = torch.randint(0, 300, obs[:, 1].shape, generator=generator).float()
    obs[:, 2] = (obs[:, 2] > 0.2).float()
    aux = torch.randn(rows, config.aux_inputs, generator=generator)
    reset = torch.rand(rows, generator=generator) < _RESET_SHARE
    return (obs, aux, reset, *policy.initial_state(rows))


@torch.no_grad()
def recurrent_parity(policy: NavigationPolicy, act: Act, *, rows: int = 1, steps: int = 200, seed: int = 0) -> Parity:
    """Compare a policy with another runtime of it over a rollout on random observations with episode ends.

    Args:
        policy: The policy, in evaluation mode on the CPU.
        act: The other runtime.
        rows: B.
        steps: Decisions.
        seed: Of observations and resets; from the second quarter on, one row begins an episode every so often.
    """
    ours: State = policy.initial_state(rows)
    theirs: State = policy.initial_state(rows)
    worst = torch.zeros(4, dtype=torch.float64)
    resets = 0
    for step in range(steps):
        obs, aux, reset, *_ = example_inputs(policy, rows, seed * steps + step)
        reset[step % rows] |= step % (steps // 4 + 1) == steps // 4
        if step == 0:
            reset[:] = True
        else:
            resets += int(reset.sum())
        out = policy.act(obs, aux, ours, reset, None)
        acted = act(obs, aux, reset, theirs)
        ours, theirs = out.state, acted.state
        state = max((_difference(a, b) for a, b in zip(ours, theirs)), key=lambda x: (x != x, x), default=0.0)
        pairs = ((out.action, acted.action), (out.value, acted.value), (out.embedding, acted.latent))
        now = torch.tensor([*(_difference(a, b) for a, b in pairs), state])
        worst = torch.maximum(worst, now.double())
    return Parity(steps, resets, *worst.tolist())


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs() / ours.abs().clamp_min(1)).max().item()


METADATA_KEY = "navi"
"""Where the file keeps its description, as JSON."""
_LOG = logging.getLogger("navi.models")
_MOST_TEXT = 2**20
"""Bytes that a package's description may have."""
_MOST_STATE = 2**28
"""Numbers that a state may have, far beyond use."""
ANSWERS = ["action", "value", "latent"]
"""Outputs of a program before the parts of the new state."""


class ExportedPolicy(abc.ABC):
    """Policy that runs in ONNX Runtime or AOTInductor.

    Args:
        path: Its file.
        description: Its metadata as JSON, None where the file has none.

    Attributes:
        metadata: The file's description; docs/how-to/export.md lists it.
        config: The policy's network.
        rows: B of a call.

    Raises:
        CheckpointError: The file is no export of ours.
    """

    def __init__(self, path: Path, description: str | None) -> None:
        try:
            self.metadata: dict[str, Any] = json.loads(description or "")
            # The program contains its networks; custom ones need not be installed here.
            past = {"past": [names.kind for names in (ENCODER_NAMES, CORE_NAMES)]} if "state" in self.metadata else {}
            self.config = parse_config(PolicyConfig, self.metadata["policy"], context=past)
            self.rows = int(self.metadata["rows"])
            self._state = _shapes(self.metadata["state"], self.rows) if past else None
            answers = self.metadata.get("answers")
        except (ValueError, KeyError, TypeError, ConfigError, RecursionError) as error:
            raise CheckpointError(f"{path}: not an exported policy of Navi ({error})") from None
        if answers != ANSWERS:
            raise CheckpointError(
                f"{path} has no output `latent`: an older Navi wrote it; run navi models export again"
            )

    def initial_state(self) -> State:
        """Return the zero recurrent state for the program's batch of rows."""
        if self._state is None:  # of an older Navi
            return build_policy(self.config).initial_state(self.rows)
        return tuple(torch.zeros(shape) for shape in self._state)

    @abc.abstractmethod
    def act(self, obs: Tensor, aux: Tensor, reset: Tensor, state: State) -> Acted:
        """Run one inference step.

        Args:
            obs: Raw observations (B, 3, Az, El), B as exported.
            aux: Auxiliary inputs (B, `config.aux_inputs`) of the previous step, see docs/how-to/export.md.
            reset: (B,) bool; True where an episode begins.
            state: State before this step; not modified.

        Returns:
            Actions (B, 4), values (B,), latents (B, D), new state.
        """


def _shapes(described: Iterable[Iterable[int]], rows: int) -> list[tuple[int, ...]]:
    """Parse and bound the state shapes that a file describes, before anything is allocated."""
    shapes = [tuple(shape) for shape in described]
    for shape in shapes:
        whole = all(isinstance(size, int) and size >= 1 for size in shape)
        if not whole or shape[:1] != (rows,):
            raise ValueError(f"a state of shape {shape} for {rows} rows")
    if sum(math.prod(shape) for shape in shapes) > _MOST_STATE:
        raise ValueError(f"a state of {len(shapes)} parts with more than {_MOST_STATE:,} numbers")
    return shapes


def load_exported(path: Path | str, *, threads: int = 1) -> ExportedPolicy:
    """Load an exported policy; the runtime follows from the file suffix.

    Args:
        path: A `.onnx` or `.pt2` file.
        threads: Threads of ONNX Runtime; a compiled package has its own number.

    Raises:
        CheckpointError: The file is missing, damaged, or no export of ours.
        ConfigError: Another suffix, or ONNX Runtime is not installed.
    """
    path = Path(path)
    if path.suffix not in _LOADERS:
        raise ConfigError(f"{path}: no exported policy ends in {path.suffix!r}; allowed: {', '.join(_LOADERS)}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    return _LOADERS[path.suffix](path, threads)


class _OnnxPolicy(ExportedPolicy):
    def __init__(self, path: Path, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise ConfigError(f"a .onnx policy needs ONNX Runtime: {install_command('export')}") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # The runtime raises its own kinds of exception, none of which derives from a common one.
            raise CheckpointError(
                f"{path}: not a program that ONNX Runtime can load ({error}); this is ONNX Runtime "
                f"{onnxruntime.__version__}: if it is older than what wrote the file, pip install -U onnxruntime, or "
                f"export again here: navi models export CHECKPOINT --out {as_argument(path)}"
            ) from None
        # A policy with `aux: off` does not read that input, and its program has none.
        self._names = [entry.name for entry in self._session.get_inputs()]
        super().__init__(path, self._session.get_modelmeta().custom_metadata_map.get(METADATA_KEY))
        c = self.config
        expected = {"obs": (self.rows, 3, c.azimuth_bins, c.elevation_bins), "aux": (self.rows, c.aux_inputs)}
        state = [part.shape for part in self.initial_state()] if self._state is None else self._state
        expected |= {"reset": (self.rows,)} | {f"state_{i}": tuple(shape) for i, shape in enumerate(state)}
        for entry in self._session.get_inputs():
            if expected.get(entry.name) != tuple(entry.shape):
                raise CheckpointError(
                    f"{path}: in its description {entry.name} is {expected.get(entry.name)}, its program takes "
                    f"{tuple(entry.shape)}: the file was changed; run navi models export once more"
                )

    def act(self, obs: Tensor, aux: Tensor, reset: Tensor, state: State) -> Acted:
        given = {"obs": obs, "aux": aux, "reset": reset} | {f"state_{i}": part for i, part in enumerate(state)}
        feed = {name: given[name].numpy() for name in self._names}
        action, value, latent, *new = (torch.from_numpy(part) for part in self._session.run(None, feed))
        return Acted(action, value, latent, tuple(new))


def _packed_description(path: Path) -> dict[str, Any]:
    """Read the metadata of an AOTInductor package without running its code; empty if not exported by Navi."""
    # Archives break in a dozen ways, with an exception for each; the loader reports the fault of this one.
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith("_metadata.json") and entry.file_size <= _MOST_TEXT:
                return dict(json.loads(json.loads(archive.read(entry))[METADATA_KEY]))
    return {}


class _AotiPolicy(ExportedPolicy):
    def __init__(self, path: Path, _threads: int) -> None:
        described = _packed_description(path)
        made, rows = printable(str(described.get("torch", "that it does not name"))), described.get("rows")
        rows = rows if isinstance(rows, int) else "ROWS"
        again = f"navi models export CHECKPOINT --format aoti --rows {rows} --out {as_argument(path)}"
        fit = f"torch {made} compiled it, this is torch {torch.__version__}; compile it again here: {again}"
        if described.get("torch", torch.__version__) != torch.__version__:
            # Machine code that does not fit may end the process: so the warning comes before.
            _LOG.warning("%s: %s", path, fit)
        try:
            self._program = torch._inductor.aoti_load_package(str(path))
            metadata = self._program.loader.get_metadata()
        except Exception as error:
            raise CheckpointError(f"{path}: not a package that AOTInductor can load ({error}); {fit}") from None
        super().__init__(path, metadata.get(METADATA_KEY))

    def act(self, obs: Tensor, aux: Tensor, reset: Tensor, state: State) -> Acted:
        # The package does not look at strides; a view would be read as if it were contiguous.
        action, value, latent, *new = self._program(*(part.contiguous() for part in (obs, aux, reset, *state)))
        return Acted(action, value, latent, tuple(new))


_LOADERS = {".onnx": _OnnxPolicy, ".pt2": _AotiPolicy}
