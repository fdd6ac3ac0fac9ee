"""Policy-gradient update of the served policy, and registration of the learned weights as a version.

The update is a clipped importance-weighted policy gradient with a value baseline. The present weights compute the
recurrent state of an experience from the latents since the last stored state (burn-in without gradient in blocks of 16
decisions).

Until they are registered, a file beside the registry holds the learned weights, written once a minute, so that a kill
loses no more. The service holds the lock of its claim while it lives; the next service registers the weights of claims
without one.
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

import numpy as np
import torch
from torch import Tensor, nn

from navi_core.config import ContinuousTrainingConfig
from navi_core.errors import NonFiniteError
from navi_core.learn.estimators.losses import policy_loss, value_loss
from navi_core.machine.file_lock import create_locked, recover_abandoned
from navi_core.models import Checkpoint, Registry, add_scenes, record_registry, save_checkpoint
from navi_core.policy import NavigationPolicy
from navi_core.policy.cores.base import State
from navi_core.scenes import Scene
from navi_core.service.learning.experience import Sample
from navi_core.service.policies.served_model import ServedModel

_BLOCK = 16
"""Length of truncated backpropagation through time, and of one burn-in block (decisions)."""


def features_of(policy: NavigationPolicy, sample: Sample) -> Tensor:
    """Compute the (N, D) core features of a batch of decisions under the policy's present weights, with burn-in.

    Args:
        policy: With gradients where they are enabled; burn-in has none.
        sample: Observations are encoded anew where it has them, else its latents are used.
    """
    numbers = sample.rows["place"].astype(np.int64)
    zero = tuple(part[0] for part in policy.initial_state(1))
    states = [trajectory.start_state(zero) for trajectory in sample.trajectories]
    state = tuple(torch.stack(parts) for parts in zip(*states))
    begins = numbers // _BLOCK * _BLOCK
    with torch.no_grad():
        for start in range(0, int(begins.max()), _BLOCK):
            rows = np.flatnonzero(begins > start)
            inputs = [sample.trajectories[row].inputs(start, start + _BLOCK) for row in rows]
            index = torch.from_numpy(rows)
            _, after = _features(policy, inputs, tuple(part[index] for part in state), _BLOCK)
            for part, new in zip(state, after):
                part[index] = new
    inputs = [
        trajectory.inputs(begin, number + 1) for trajectory, begin, number in zip(sample.trajectories, begins, numbers)
    ]
    last = torch.from_numpy(numbers - begins)
    latent = None if sample.observation is None else policy.encoder(sample.observation)
    features, _ = _features(policy, inputs, state, int(last.max()) + 1, (last, latent))
    return features[torch.arange(len(last)), last]


class PolicyUpdate:
    """Optimiser of the served policy: clipped policy-gradient steps with Adam.

    Args:
        policy: Changed in place; its encoder only where experiences have observations.
        config: Rates and coefficients.
        scale: Mean and deviation of the returns in the critic's units.
    """

    def __init__(
        self, policy: NavigationPolicy, config: ContinuousTrainingConfig, scale: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        self.policy, self._config, self.scale = policy, config, scale
        frozen = {id(p) for p in policy.encoder.parameters()} if config.store == "latent" else set()
        self._learned = [p for p in policy.parameters() if id(p) not in frozen]
        self._optimizer = torch.optim.Adam(self._learned, lr=config.learning_rate)

    def step(self, sample: Sample, rewards: np.ndarray) -> float:
        """Take one gradient step on a batch and return the loss.

        Args:
            sample: N experiences.
            rewards: (N,) of each.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; nothing was changed.
        """
        c = self._config
        mean, deviation = self.scale
        estimates = [
            trajectory.advantage(int(number), reward, c.discount, c.trace)
            for trajectory, number, reward in zip(sample.trajectories, sample.rows["place"], rewards.tolist())
        ]
        advantage, target = (torch.tensor(part, dtype=torch.float32) for part in zip(*estimates))
        spread = advantage.std(unbiased=False).clamp_min(1e-6) if len(estimates) > 1 else torch.ones(())
        advantage = (advantage - (advantage.mean() if len(estimates) > 1 else 0.0)) / spread
        heads = self.policy.heads
        features = features_of(self.policy, sample)
        distribution = heads.distribution(features)
        log_ratio = distribution.log_prob(sample.column("action")) - sample.column("log_prob")
        values, old = heads.value(features), (sample.column("value") - mean) / deviation
        loss = policy_loss(log_ratio.clamp(-20.0, 20.0), advantage, c.clip)
        loss = loss + c.value_coefficient * value_loss(values, (target - mean) / deviation, old, c.clip)
        loss = loss - c.entropy_coefficient * distribution.entropy().mean()
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_([p for p in self._learned if p.grad is not None], c.max_grad_norm)
        if not (bool(torch.isfinite(loss)) and bool(torch.isfinite(norm))):
            self._optimizer.zero_grad(set_to_none=True)
            raise NonFiniteError(
                "loss", f"the loss is {float(loss.detach())}, the gradient's norm {float(norm)}; no step taken"
            )
        self._optimizer.step()
        return float(loss.detach())


def _features(
    policy: NavigationPolicy,
    inputs: list[tuple[Tensor, Tensor]],
    state: State,
    length: int,
    newest: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, State]:
    """Run the temporal (recurrent) core on padded sequences; return features (N, T, D) and the final states.

    Padding behind a decision does not change it.
    """
    width = inputs[0][0].shape[1]
    latent, aux = torch.zeros(len(inputs), length, width), torch.zeros(len(inputs), length, policy.config.aux_inputs)
    for row, (part, extra) in enumerate(inputs):
        latent[row, : len(part)], aux[row, : len(part)] = part, extra
    if newest is not None and newest[1] is not None:
        latent = latent.index_put((torch.arange(len(inputs)), newest[0]), newest[1])
    going = torch.zeros(latent.shape[:2], dtype=torch.bool)
    features: tuple[Tensor, State] = policy.core(policy.joined(latent, aux, None), state, going)
    return features


_LOG = logging.getLogger("navi.service")
_SAVE_SECONDS = 60.0
_TAGS = ("inference",)
_MOST_BYTES = 2**16


class LearnedWeights:
    """Checkpoint writer of learned weights until their registration; thread-safe.

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

    def save(self, number: int, policy: NavigationPolicy, decisions: int) -> Path | None:
        """Save the weights to the checkpoint file, once a minute at most, unless this version is saved already.

        Args:
            number: Version number of the weights.
            policy: Policy with the weights.
            decisions: Since the beginning.

        Returns:
            The file, if it was written.

        Raises:
            CheckpointError: They cannot be written.
        """
        with self._guard:
            # Older weights may still serve when a successor takes over; after a rollback to the first none are learned.
            if not self._open or number == self._saved or number < self._first or time.monotonic() < self._next:
                return None
            self._next = time.monotonic() + _SAVE_SECONDS
            if number > self._first:
                self._write(policy, decisions)
            else:
                self._file.unlink(missing_ok=True)
            self._saved = number
            return self._file if number > self._first else None

    def register(self, number: int, policy: NavigationPolicy, decisions: int) -> str | None:
        """Register the learned weights as a version and close; return its name, None if nothing was learned.

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
    """Recover the learned weights of killed services: register them; return the versions."""
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
