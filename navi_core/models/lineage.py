"""Provenance of weights: weight hash, scenes trained on, comparability of two runs' rewards.

Training scenes are named by content and by source, those of the initial weights included: a mesh that is compiled anew,
at another resolution or decimated, has another content and the same source.

`latest` moves to a version with a greater reward_ema, where the two compare.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from navi_core.errors import CheckpointError

if TYPE_CHECKING:
    from navi_core.config import PolicyConfig, TrainConfig
    from navi_core.models.checkpoint import Checkpoint
    from navi_core.scenes import Scene


def weights_hash(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of a module's state dict.

    Entries are taken in order of their names; each contributes name, dtype, shape and its values in
    row-major order, so device and memory format do not matter.

    Args:
        weights: A module, or its state dict.
    """
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def same_network(config: PolicyConfig, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint's state dict fits a configuration's network: same parts, names and shapes."""
    from navi_core.policy import build_policy

    if (checkpoint.encoder_backend, checkpoint.temporal_core) != (config.encoder, config.core):
        return False
    theirs = {name: value.shape for name, value in checkpoint.policy_state.items()}
    return theirs == {name: value.shape for name, value in build_policy(config, 0).state_dict().items()}


_KEY = "trained_on"


def corpus_of(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> tuple[dict[str, str], dict[str, Any]]:
    """Build `scene_hashes` and `corpus_summary` of a checkpoint from the training scenes.

    Args:
        scenes: None for a task.
        vocabulary: Semantic id by name; evaluation must show the policy the ids that it was trained on.
    """
    hashes = {scene.name: scene.content_hash() for scene in scenes}
    summary: dict[str, Any] = {
        "scenes": len(hashes), "names": sorted(hashes), "semantic_vocabulary": dict(vocabulary),
    }  # fmt: skip
    # The contents, too: a resumed run adds those of its checkpoint, and must end like an uninterrupted one.
    add_scenes(summary, (*hashes.values(), *(scene.source_hash for scene in scenes)))
    return hashes, summary


def trained_on(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the content and source hashes of every scene that the checkpoint's weights were trained on.

    Raises:
        CheckpointError: The entry is no list of hashes.
    """
    hashes = checkpoint.corpus_summary.get(_KEY, [])
    if not isinstance(hashes, list) or not all(isinstance(name, str) for name in hashes):
        raise CheckpointError(f"the checkpoint's corpus_summary[{_KEY!r}] is no list of hashes")
    return frozenset(checkpoint.scene_hashes.values()) | frozenset(hashes)


def add_scenes(summary: dict[str, Any], hashes: Iterable[str]) -> None:
    """Add scene hashes (content or source) to a corpus summary; empty hashes (source unknown) are ignored."""
    summary[_KEY] = sorted({*summary.get(_KEY, ()), *hashes} - {""})


def add_scenes_of(summary: dict[str, Any], before: Checkpoint) -> None:
    """Add the training scenes of a parent checkpoint, from which the run starts or resumes."""
    add_scenes(summary, trained_on(before))


def why_latest_stays(new: Checkpoint, current: Checkpoint) -> str | None:
    """Return why alias `latest` does not move from `current` to `new`, None where it moves.

    Different reward terms are not comparable: then `latest` moves to the newer version, unless it has ended too few
    episodes.
    """
    if not math.isfinite(new.reward_ema):
        return "the new one has no reward"
    if not math.isfinite(current.reward_ema):
        return None
    ours, theirs = new.train_config(), current.train_config()
    if (ours.task is None) != (theirs.task is None):
        return None if ours.task is None else f"the new one flies nowhere, it solves {ours.task}"
    settled = _is_settled(new)
    if settled != _is_settled(current):
        return None if settled else f"the new one has ended {new.episode_count} episodes with {ours.actors} drones"
    if not same_rewards(ours, theirs):
        return None
    if new.run_id == current.run_id and not settled and new.step_id != current.step_id:
        return None if new.step_id > current.step_id else "it is what the new one's run became"
    if new.reward_ema > current.reward_ema:
        return None
    return f"{current.reward_ema:+.4f} is the reward_ema to exceed, the new one's is {new.reward_ema:+.4f}"


def same_rewards(one: TrainConfig, other: TrainConfig) -> bool:
    """Return whether two configurations have the same per-step reward terms and weights."""
    return _reward_settings(one) == _reward_settings(other)


def _is_settled(checkpoint: Checkpoint) -> bool:
    """Return whether a reward average covers whole episodes: at least as many ended as there are drones.

    An earlier average covers episode beginnings only, where all floor is new: a run of one update would beat its own
    later versions.
    """
    return checkpoint.episode_count >= checkpoint.train_config().actors


def _reward_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the reward terms and weights of the environment and the shaper."""
    env, shaper = config.env, config.shaper
    shaped = {name: value for name, value in shaper.model_dump().items() if name not in _NO_REWARD}
    if config.task is not None:
        return {"task": config.task, "shaper": shaped}
    return {
        "task": env.task,
        "weights": env.reward.resolved(),
        "floor": (env.reward.view_radius, env.reward.view_cell),
        "goal": env.goal.model_dump() if env.task == "point_goal" else {},
        "decision_hz": env.dynamics.decision_hz,
        "shaper": shaped,
    }


_NO_REWARD = ("memory_capacity", "rnd_lr")
"""Settings of the shaper that are no part of the reward."""
