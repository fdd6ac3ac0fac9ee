"""Registration of learned weights as a version, a child of the served one.

Until then a file beside the registry holds the weights, written once a minute, so that a kill loses no more. The
service holds the lock of its claim while it lives; the next service registers the weights of claims without one.
"""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from navi_core.machine.file_lock import create_locked, recover_abandoned
from navi_core.models import Checkpoint, Registry, add_scenes, record_registry, save_checkpoint
from navi_core.policy import NavigationPolicy
from navi_core.scenes import Scene
from navi_core.service.policies.served_model import ServedModel

_LOG = logging.getLogger("navi.service")
_SAVE_SECONDS = 60.0
_TAGS = ("inference",)
_MOST_BYTES = 2**16


class LearnedWeights:
    """Learned weights on their way to the registry; thread-safe.

    Args:
        registry: Gets them as a version.
        served: Model at the beginning.
        run_id: Name of this service process; the number of a model is appended.
        first: Number of the weights at the beginning; those are not learned.
        scenes: Training scenes, as far as they are known.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(
        self, registry: Registry, served: ServedModel, run_id: str, first: int, scenes: Sequence[Scene] = ()
    ) -> None:
        self._registry, self._served, self._run_id, self._first = registry, served, run_id, first
        self._seen = frozenset().union(*(scene.hashes() for scene in scenes))
        self._guard, self._open = threading.Lock(), True
        self._saved, self._next = first, time.monotonic() + _SAVE_SECONDS
        folder = registry.path / "learned"
        folder.mkdir(parents=True, exist_ok=True)
        self._claim = folder / f"{run_id}-{first}.json"
        self._file = self._claim.with_suffix(".pt")
        before = served.checkpoint
        same = [] if before is None else [e.version for e in registry.list() if e.weights_hash == before.weights_hash]
        self._parents = same[:1]
        facts = {"served": served.name, "parents": self._parents}
        self._descriptor = create_locked(self._claim, json.dumps(facts).encode())

    def save(self, number: int, policy: NavigationPolicy, decisions: int) -> None:
        """Write weights to the file, once a minute at most, unless it has them already.

        Args:
            number: Of the weights.
            policy: The weights.
            decisions: Since the beginning.

        Raises:
            CheckpointError: They cannot be written.
        """
        with self._guard:
            # Older weights may still serve when a successor takes over; after a rollback to the first none are learned.
            if not self._open or number == self._saved or number < self._first or time.monotonic() < self._next:
                return
            self._next = time.monotonic() + _SAVE_SECONDS
            if number > self._first:
                self._write(policy, decisions)
            else:
                self._file.unlink(missing_ok=True)
            self._saved = number

    def register(self, number: int, policy: NavigationPolicy, decisions: int) -> str | None:
        """Register the weights and close; return the name of the version, None where nothing was learned.

        No alias moves but a missing `latest`: learned weights are promoted by evaluation. After an error the file
        stays for the next service.

        Raises:
            CheckpointError: They cannot be written.
            RegistryError: They cannot be registered.
        """
        with self._guard:
            if not self._open:
                return None
            self._open = False
            try:
                version = None
                if number > self._first and self._served.checkpoint is not None:
                    self._write(policy, decisions)
                    notes = f"learned in {decisions:,} decisions of flight with {self._served.name}"
                    version = self._registry.register(self._file, parents=self._parents, notes=notes, tags=_TAGS)
                    record_registry(self._registry)
                self._file.unlink(missing_ok=True)
                self._claim.unlink(missing_ok=True)
            finally:
                os.close(self._descriptor)
        return version

    def _write(self, policy: NavigationPolicy, decisions: int) -> None:
        before = self._served.checkpoint
        if before is None:
            return
        summary = dict(before.corpus_summary)
        add_scenes(summary, self._seen)
        state = Checkpoint.of(
            policy=policy,
            optimizer=None,
            config=before.train_config(),
            step_id=before.step_id + decisions,
            episode_count=before.episode_count,
            reward_ema=math.nan,
            run_id=self._run_id,
            wall_time_hours=before.wall_time_hours,
            parent_checkpoint=str(self._served.path),
            training_source="inference",
            rnd=before.curiosity() or None,
            normalisers=before.normalisers,
            corpus_summary=summary,
            scene_hashes=before.scene_hashes,
        )
        save_checkpoint(self._file, state)


def recover_learned(registry: Registry) -> list[str]:
    """Register the weights of killed services; return the versions."""
    report = partial(_LOG.warning, "the weights of %s cannot be registered now: %s")
    claims = sorted((registry.path / "learned").glob("*.json"))
    recovered = recover_abandoned(claims, lambda claim: _recover(registry, claim), report)
    versions = [version for version in recovered if version is not None]
    if versions:
        _LOG.warning("weights of killed services are registered: %s", ", ".join(versions))
    return versions


def _recover(registry: Registry, claim: Path) -> str | None:
    weights, version = claim.with_suffix(".pt"), None
    if weights.is_file():
        with claim.open("rb") as file:
            facts = json.loads(file.read(_MOST_BYTES))
        if not isinstance(facts, dict) or not isinstance(facts.get("parents"), list):
            raise ValueError("not a claim file; inspect it, then remove it")
        parents = [name for name in facts["parents"] if isinstance(name, str)]
        notes = f"learned in flight with {facts.get('served')} by a service that was killed"
        version = registry.register(weights, parents=parents, notes=notes, tags=_TAGS)
    # Also files whose writing was interrupted.
    for left in (weights, *claim.parent.glob(f".{weights.name}.*"), claim):
        left.unlink(missing_ok=True)
    if version is not None:
        record_registry(registry)
    return version
