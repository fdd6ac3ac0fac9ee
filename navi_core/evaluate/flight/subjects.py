"""Evaluation subjects: pilots by name, checkpoints, policies in memory, registered versions."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate.flight.flyers import QUIET_SHAPER, PilotFlyer, PolicyFlyer
from navi_core.evaluate.flight.frozen_starts import Flyer
from navi_core.models import ModelVersion, Registry, load_policy, trained_on, weights_hash
from navi_core.pilots import PILOTS, Pilot, build_pilot
from navi_core.policy import NavigationPolicy, custom_networks

OWN_NETWORKS = "own_networks"
"""Column with name and source digest of custom networks or a custom pilot; absent for built-in ones, which
`flight_code` covers."""


@dataclass(frozen=True)
class Subject:
    """Subject ready to be flown, with its identity columns."""

    flyer: Flyer
    """Policy or pilot that maps observations to actions."""
    identity: dict[str, Any]
    """Identity columns: kind, checkpoint, run, training steps."""
    fingerprint: Callable[[], str | None]
    """Hash of the current weights; None without weights."""
    vocabulary: dict[str, int] | None = None
    """Semantic id by name of the training, where the checkpoint holds it."""
    trained_on: frozenset[str] = frozenset()
    """Content and source hashes of the training scenes, where the checkpoint holds them."""


def named_subject(name: str, registry: Registry) -> str | Path | ModelVersion:
    """Resolve a name to a pilot's name, a checkpoint's path, or a registered version.

    Raises:
        RegistryError: The name is none of these.
    """
    if name in PILOTS:
        return name
    return Path(name) if os.path.isfile(name) else registry.resolve(name)


def resolve_subject(
    subject: str | Path | Pilot | NavigationPolicy | ModelVersion | Subject,
    config: EvalConfig,
    *,
    name: str | None = None,
) -> Subject:
    """Prepare a subject for flight.

    Args:
        subject: Name of a pilot, path of a checkpoint, a pilot, a policy, a registered version, or a prepared subject.
        config: The protocol.
        name: Name in the results; by default the subject's own.

    Raises:
        EvaluationError: The name is unknown, or the policy has another decision rate.
        CheckpointError: The checkpoint cannot be loaded.
    """
    if isinstance(subject, Subject):
        subject.flyer.name = name or subject.flyer.name
        return subject
    if isinstance(subject, str) and subject in PILOTS:
        flown = _of_pilot(build_pilot(subject, seed=config.seed, dynamics=config.dynamics), config, name)
        source = PILOTS.source(subject)
        own = {} if source is None else {OWN_NETWORKS: f"pilot {subject} {source}"}
        return replace(flown, identity=flown.identity | own)
    if isinstance(subject, Pilot):
        return _of_pilot(subject, config, name)
    if isinstance(subject, NavigationPolicy):
        flyer = PolicyFlyer(subject, config, name=name or "policy")
        identity = {"subject_kind": "policy"} | _custom_columns(subject.config.encoder, subject.config.core)
        return Subject(flyer, identity, lambda: weights_hash(subject.state_dict()))
    if isinstance(subject, ModelVersion):
        return _of_checkpoint(Path(subject.path), config, name or subject.version, "version")
    if isinstance(subject, str | Path):
        path = Path(subject)
        if not path.is_file():
            raise EvaluationError(
                f"no pilot and no checkpoint file {str(subject)!r}; pilots: {', '.join(PILOTS)}; "
                "checkpoints lie in the run directories, versions are listed by `navi models`"
            )
        return _of_checkpoint(path, config, name or path.stem, "checkpoint")
    raise EvaluationError(
        f"cannot evaluate a {type(subject).__name__}; give a pilot's name, a checkpoint, a policy, or an instance of a "
        "navi_core.pilots.Pilot subclass, which may call any network"
    )


def _custom_columns(encoder: str, core: str) -> dict[str, Any]:
    """Return the column with the code digest of custom networks, where there are any."""
    found = custom_networks(encoder, core)
    return {} if found is None else {OWN_NETWORKS: found}


def _of_pilot(pilot: Pilot, config: EvalConfig, name: str | None) -> Subject:
    flyer = PilotFlyer(pilot, config)
    flyer.name = name or pilot.name
    return Subject(flyer, {"subject_kind": "pilot", "privileged": pilot.privileged}, lambda: None)


def _of_checkpoint(path: Path, config: EvalConfig, name: str, kind: str) -> Subject:
    policy, checkpoint = load_policy(path)
    rate = config.dynamics.decision_hz
    if abs(checkpoint.decision_hz - rate) > 1e-6:
        raise EvaluationError(
            f"{name} decides {checkpoint.decision_hz:g} times a second and the evaluation {rate:g} times; set "
            "dynamics.substep and dynamics.steps_per_decision as in training"
        )
    trained = checkpoint.train_config()
    flyer = PolicyFlyer(
        policy,
        config,
        name=name,
        # A clone was trained without rewards, with zero auxiliary inputs.
        shaper=QUIET_SHAPER if checkpoint.training_source == "bc" else trained.shaper,
        shaper_rows=trained.actors,
        shaper_state=checkpoint.curiosity(),
        max_distance=trained.env.max_distance,
    )
    identity = {
        "subject_kind": kind,
        "subject_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "checkpoint": str(path),
        "training_run_id": checkpoint.run_id,
        "training_steps": checkpoint.step_id,
        "training_source": checkpoint.training_source,
    } | _custom_columns(checkpoint.encoder_backend, checkpoint.temporal_core)
    vocabulary = checkpoint.corpus_summary.get("semantic_vocabulary")
    return Subject(
        flyer,
        identity,
        lambda: weights_hash(policy.state_dict()),
        vocabulary=dict(vocabulary) if vocabulary else None,
        trained_on=trained_on(checkpoint),
    )
