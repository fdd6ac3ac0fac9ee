"""Drift smoothing in Q-learning: of the targets, of the latents, or as a penalty on Q."""

from dataclasses import replace

from torch import Tensor

from navi_core.config import SmoothingConfig
from navi_core.learn.estimators.drift_smoother import DriftSmoother, free_energy
from navi_core.learn.events import SmoothingDecision
from navi_core.learn.replay.q_batches import QBatch
from navi_core.policy.heads import QHead


class QSmoothing:
    """Smooths minibatches and counts its effects, so that a smoother without effect shows.

    Args:
        config: Settings.
        seed: Seed of the noise.
    """

    def __init__(self, config: SmoothingConfig, seed: int) -> None:
        self.smoother = DriftSmoother(config, seed)
        self._decisions: list[SmoothingDecision] = []

    def __call__(
        self, batch: QBatch, heads: QHead, weights: Tensor, step: int, td_var: float | None, draw: int
    ) -> tuple[QBatch, Tensor | None]:
        """Smooth one minibatch.

        Args:
            batch: Decisions.
            heads: The Q head.
            weights: (N,) importance weights of the items.
            step: Decisions so far.
            td_var: Variance of the temporal differences of the minibatch before, for the gate; None for the first.
            draw: Number of the minibatch, which the noise is drawn for.

        Returns:
            The minibatch with what is smoothed, and a penalty to add to the loss, or None.
        """
        config = self.smoother.config
        valid = batch.valid.flatten() > 0
        z = batch.latents.flatten(0, -2)[valid]
        importance = weights.view(-1, *[1] * (batch.q.ndim - 1)).expand(batch.q.shape).flatten()[valid]
        values = batch.values.flatten(0, -2)[valid]
        penalty: Tensor | None = None
        if config.apply_to == "td_targets":
            h = batch.target.flatten()[valid]
        else:
            h = z if config.apply_to == "latents" else values
        smoothed, decision = self.smoother(h, z, step, td_var=td_var, importance=importance, draw=draw)
        self._decisions.append(decision)
        if not decision.applied:
            return batch, None
        if config.apply_to == "td_targets":
            batch = replace(batch, target=batch.target.flatten().masked_scatter(valid, smoothed).view_as(batch.target))
        elif config.apply_to == "latents":
            latents = batch.latents.flatten(0, -2).masked_scatter(valid[:, None], smoothed).view_as(batch.latents)
            again = heads.values_of(latents)
            q = again.gather(-1, batch.action[..., None]).squeeze(-1)
            batch = replace(batch, latents=latents, values=again, q=q)
        else:
            penalty = config.regulariser_weight * 0.5 * (values - smoothed.detach()).square().sum() / batch.count
        if config.free_energy_weight:
            kernel = self.smoother.kernel
            assert kernel is not None
            moving = values if config.apply_to == "td_targets" else h
            energy = free_energy(moving, kernel.mean(moving.detach()), kernel.weight, config.temperature)
            term = config.free_energy_weight * energy / batch.count
            penalty = term if penalty is None else penalty + term
        return batch, penalty

    def figures(self) -> dict[str, float]:
        """Return fractions and means over the applications since the last call; empty if there was none."""
        made, self._decisions = self._decisions, []
        if not made:
            return {}
        applied = [d for d in made if d.applied]
        count = max(len(applied), 1)
        return {
            "smoothed_share": len(applied) / len(made),
            "smoothing_gated": sum(d.gated_by_uncertainty for d in made) / len(made),
            "smoothing_step": sum(d.mean_step for d in applied) / count,
            "smoothing_clipped": sum(d.tau_clip for d in applied) / count,
            "smoothing_disagreement": sum(d.disagreement for d in made) / len(made),
            "free_energy": sum(d.fep_value for d in applied) / count,
            "sigma_mean": sum(d.sigma_stats[1] for d in applied) / count,
            "alpha_step": applied[-1].alpha_step_used if applied else 0.0,
        }
