"""Checkpoints, format version 3: policy weights, and all training state that a run needs to resume.

A checkpoint holds plain containers, numbers, strings and tensors only, is written in one piece or
not at all, and is read with `weights_only=True`: a file from elsewhere cannot run code.
"""

import io
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, cast

import torch
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from navi_core.config import PolicyConfig, ShaperConfig, TrainConfig, parse_config
from navi_core.config.learn import upgrade_train_config
from navi_core.config.registry import CORE_NAMES, ENCODER_NAMES, LEARNER_NAMES
from navi_core.config.world import REWARD_NAMES
from navi_core.errors import CheckpointError, CheckpointVersionError, ConfigError
from navi_core.models.lineage import weights_hash
from navi_core.policy import NavigationPolicy, build_policy
from navi_core.record import hardware_profile, write_durably

CHECKPOINT_VERSION = 3
TRAINING_SOURCES = ("rl", "bc", "inference")


_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TrainedFacts:
    """Metadata of trained weights (run, step, architecture, code revision), shared by checkpoints and the registry."""

    run_id: str
    """Run that wrote it."""
    step_id: int
    """Decisions so far, summed over rows."""
    episode_count: int
    """Episodes finished so far."""
    training_source: str
    """`rl`, `bc` or `inference`."""
    temporal_core: str
    """Name of the temporal core."""
    encoder_backend: str
    """Name of the encoder."""
    decision_hz: float
    """Decisions per second of flight [Hz]; evaluation refuses another rate."""
    code_revision: str | None
    """Git commit of the code, None outside a checkout."""
    weights_hash: str
    """SHA-256 of the policy's weights."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Checkpoint(TrainedFacts):
    """Content of a checkpoint file (weights, optimiser, configuration, RNG states); field types are validated."""

    version: int
    """Format version, 3."""
    reward_ema: float
    """Smoothed shaped reward per decision; NaN before the first."""
    wall_time_hours: float
    """Training time so far [h]."""
    parent_checkpoint: str | None
    """Checkpoint that training went on from."""
    corpus_summary: dict[str, Any]
    """Counts and names of the scenes."""
    created_at: str
    """UTC, ISO 8601."""
    config: dict[str, Any]
    """The run's whole `TrainConfig` as plain data."""
    scene_hashes: dict[str, str]
    """Content hash by scene name."""
    policy_state: dict[str, Tensor]
    """The policy's state dict."""
    optimizer_state: dict[str, Any] | None
    """The optimizer's state dict, None without one."""
    rnd_state: dict[str, Any] | None
    """State of curiosity, None without one."""
    rng: dict[str, Any]
    """Random states by name."""
    normalisers: dict[str, Any]
    """Running moments by name."""
    extra: dict[str, Any]
    """Data of the writer."""

    # Its arguments are all that a run knows of itself.
    @classmethod
    def of(
        cls,
        *,
        policy: NavigationPolicy,
        optimizer: torch.optim.Optimizer | None,
        config: TrainConfig,
        run_id: str,
        step_id: int,
        episode_count: int,
        reward_ema: float,
        wall_time_hours: float,
        parent_checkpoint: str | None = None,
        training_source: str = "rl",
        rnd: Mapping[str, Any] | nn.Module | None = None,
        rng: Mapping[str, Any] | None = None,
        normalisers: Mapping[str, Any] | None = None,
        corpus_summary: Mapping[str, Any] | None = None,
        scene_hashes: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Self:
        """Build a checkpoint from a run's current state; further arguments are the fields of these names.

        Args:
            policy: The policy; its configuration must be `config.policy`.
            optimizer: The optimizer, or None.
            config: The run's configuration.
            rnd: Curiosity, a module or its state.
            rng: Random states by name; None stores torch's CPU generator.

        Raises:
            CheckpointError: Something is not plain data, or `config` is another policy's.
        """
        if training_source not in TRAINING_SOURCES:
            raise CheckpointError(f"training_source {training_source!r}; allowed: {', '.join(TRAINING_SOURCES)}")
        if policy.config != config.policy:
            raise CheckpointError("config.policy is not the configuration the policy was built from")
        curiosity = rnd.state_dict() if isinstance(rnd, nn.Module) else rnd
        return cls(
            version=CHECKPOINT_VERSION,
            run_id=run_id,
            step_id=int(step_id),
            episode_count=int(episode_count),
            reward_ema=float(reward_ema),
            wall_time_hours=float(wall_time_hours),
            parent_checkpoint=None if parent_checkpoint is None else str(parent_checkpoint),
            training_source=training_source,
            temporal_core=config.policy.core,
            encoder_backend=config.policy.encoder,
            corpus_summary=_plain_dict(corpus_summary, "corpus_summary"),
            created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            config=config.model_dump(mode="json"),
            decision_hz=config.env.dynamics.decision_hz,
            scene_hashes=_plain_dict(scene_hashes, "scene_hashes"),
            code_revision=hardware_profile()["revision"],
            weights_hash=weights_hash(policy),
            policy_state=_plain_dict(policy.state_dict(), "policy"),
            optimizer_state=None if optimizer is None else _plain_dict(optimizer.state_dict(), "optimizer"),
            rnd_state=None if curiosity is None else _plain_dict(curiosity, "rnd"),
            rng=_plain_dict({"torch": torch.get_rng_state()} if rng is None else rng, "rng"),
            normalisers=_plain_dict(normalisers, "normalisers"),
            extra=_plain_dict(extra, "extra"),
        )

    def train_config(self) -> TrainConfig:
        """Parse the run's training configuration.

        Raises:
            CheckpointError: It does not fit this version of Navi, or a custom network is not registered.
        """
        try:
            # First: a network that is not installed here is no fault of the file.
            ENCODER_NAMES.checked(self.encoder_backend)
            CORE_NAMES.checked(self.temporal_core)
        except ConfigError as error:
            raise CheckpointError(f"the policy of run {self.run_id} cannot be built here: {error}") from None
        try:
            # A policy flies without its learner and its rewards, which may be custom and not installed here.
            past = {"past": [LEARNER_NAMES.kind, REWARD_NAMES.kind]}
            return parse_config(TrainConfig, upgrade_train_config(self.config), context=past)
        except ConfigError as error:
            raise CheckpointError(
                f"the checkpoint's configuration is not valid: {error}. Run {self.run_id} wrote it on "
                f"{self.created_at[:10]} with revision {self.code_revision or 'unknown'} of Navi: if that is newer, "
                "update this one; if it is older, fly and export it there, or train again here"
            ) from None

    def row_shaper(self) -> ShaperConfig | None:
        """Return the reward-shaper configuration of one actor: the memory capacity is divided by the actor count.

        None where the auxiliary input was zero: for a behaviour clone, a policy that does not read it, or without
        curiosity and loop memory.
        """
        config = self.train_config()
        shaper = config.shaper
        if self.training_source == "bc" or config.policy.aux == "off" or not shaper.made_of:
            return None
        return shaper.model_copy(update={"memory_capacity": shaper.memory_capacity // config.actors})

    def curiosity(self) -> dict[str, Any]:
        """Return the reward shaper's state with the trained curiosity (RND), empty where it was off."""
        collector = self.extra.get("collector") or {}
        kept = collector.get("shaper") or {} if self.rnd_state is None else self.rnd_state
        # The loop memory of the training flight does not apply to another flight.
        return {key: value for key, value in kept.items() if key != "memory"}


def save_checkpoint(path: Path | str, checkpoint: Checkpoint) -> Path:
    """Save a checkpoint atomically: temporary file, fsync, rename.

    Args:
        path: File to write; an existing one is replaced at once.
        checkpoint: Its content, see `Checkpoint.of`.

    Returns:
        `path`.

    Raises:
        CheckpointError: The file cannot be written; a former file of that name is untouched.
    """
    path, buffer = Path(path), io.BytesIO()
    torch.save(vars(checkpoint), buffer)
    with CheckpointError.of_system(f"{path}: the checkpoint cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, buffer.getvalue())
    return path


def load_checkpoint(
    path: Path | str, *, expect_encoder: str | None = None, expect_core: str | None = None
) -> Checkpoint:
    """Load and validate a checkpoint; tensors are loaded to the CPU.

    Args:
        path: The file.
        expect_encoder: Encoder backend it must have.
        expect_core: Temporal core it must have.

    Raises:
        CheckpointError: The file is missing, truncated, no checkpoint, of another version, damaged, or of another
            encoder or core; the message names both.
    """
    path = Path(path)
    payload = _read_payload(path)
    if _shares_containers(payload):
        raise CheckpointError(f"{path}: damaged: it refers twice to one list or section, which Navi never writes")
    try:
        checkpoint = Checkpoint(**{str(name): value for name, value in payload.items()})
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        reason = f"it lacks {field}" if fault["type"] == "missing" else f"{field}: {fault['msg']}"
        raise CheckpointError(f"{path}: damaged: {reason}") from None
    except TypeError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from None
    for name, weight in checkpoint.policy_state.items():
        if not _is_whole(weight):
            raise CheckpointError(f"{path}: damaged: the weight {name} does not lie in the file as a whole")
    for kind, found, expected in (
        ("encoder", checkpoint.encoder_backend, expect_encoder),
        ("temporal core", checkpoint.temporal_core, expect_core),
    ):
        if expected is not None and found != expected:
            raise CheckpointError(f"{path}: its {kind} is {found!r}, expected {expected!r}")
    if weights_hash(checkpoint.policy_state) != checkpoint.weights_hash:
        raise CheckpointError(f"{path}: the weights do not have the hash they were saved with; the file is damaged")
    return checkpoint


def _read_payload(path: Path) -> dict[str, Any]:
    """Unpickle a checkpoint file of this version safely, without validating its content."""
    if not path.is_file():
        named = "" if path.suffix else "; the file of a version or an alias is Registry(folder).resolve(name).path"
        raise CheckpointError(f"{path}: no such checkpoint{named}")
    try:
        # torch.load does not compare the archive's checksums; a flipped bit of the optimizer would pass.
        with zipfile.ZipFile(path) as archive:
            # Files of torch are not compressed: one that unpacks to more than itself was made by something else.
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("it unpacks to more than itself")
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} does not have the checksum it was saved with")
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged stream makes the restricted unpickler raise nearly anything; none of it is a checkpoint.
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{path}: truncated, or not a checkpoint ({reason})") from None
    version = payload.get("version") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(version, int):
        raise CheckpointError(f"{path}: not a Navi checkpoint, it has no version")
    if version != CHECKPOINT_VERSION:
        age = "older than" if version < CHECKPOINT_VERSION else "newer than"
        raise CheckpointVersionError(
            f"{path}: checkpoint version {version} is {age} version {CHECKPOINT_VERSION}, the only one read; "
            + ("train again with this Navi" if version < CHECKPOINT_VERSION else "update Navi")
        )
    return payload


def _shares_containers(payload: dict[str, Any]) -> bool:
    """Return whether a container occurs twice in a payload (aliasing), which could unfold to any size."""
    seen: set[int] = set()
    waiting: list[Any] = [payload]
    while waiting:
        value = waiting.pop()
        # Python keeps one empty tuple for all.
        if not isinstance(value, dict | list | tuple | set) or value == ():
            continue
        if id(value) in seen:
            return True
        seen.add(id(value))
        waiting += [*value, *value.values()] if isinstance(value, dict) else value
    return False


def _is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor is a dense CPU tensor whose storage holds all its elements (not an expanded view)."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return plain and tensor.untyped_storage().nbytes() >= tensor.nbytes


def load_policy(path: Path | str, device: torch.device | str = "cpu") -> tuple[NavigationPolicy, Checkpoint]:
    """Load a checkpoint and build its policy in evaluation mode.

    Args:
        path: The file.
        device: Device of the policy.

    Raises:
        CheckpointError: See `load_checkpoint`; the policy learned a reference task; or configuration and weights do not
            fit each other.
    """
    checkpoint = load_checkpoint(path)
    trained = checkpoint.train_config()
    if trained.task is not None:
        raise CheckpointError(
            f"{path} learned the task {trained.task} and has no sight of scenes, so it cannot fly; what it earned "
            f"stands in the metrics of its run {checkpoint.run_id}; name a checkpoint of `navi train` without --task"
        )
    config: PolicyConfig = trained.policy
    policy = build_policy(config)
    try:
        policy.load_state_dict(checkpoint.policy_state)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: the weights do not fit the checkpoint's configuration: {error}") from None
    return policy.to(device).eval(), checkpoint


def _plain(value: object, where: str) -> object:
    """Copy nested plain data with tensors to the CPU; refuse types that a restricted unpickler would refuse."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        # A view would drag its whole storage into the file.
        return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (str, int):
                raise CheckpointError(f"{where} has the key {key!r}; a checkpoint holds str and int keys only")
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    raise CheckpointError(f"{where} is a {type(value).__name__}; a checkpoint holds plain containers and tensors only")


def _plain_dict(value: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Convert a mapping to serialisable data: CPU tensors and plain containers; None gives an empty dict."""
    return cast("dict[str, Any]", _plain(value or {}, where))
