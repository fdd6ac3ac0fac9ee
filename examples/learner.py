"""Custom learner: PPO that keeps a share of the old weights after each update."""

import torch

from navi_core.learn import PPOLearner, register_learner


@register_learner("hesitant")
class Hesitant(PPOLearner):
    """PPO that goes only a share of each update's way; `learner_options.share` sets it."""

    def __init__(self, policy, shaper, config, device, workers, *, share=0.5):
        super().__init__(policy, shaper, config, device, workers)
        self.share = share

    def update(self, rollout, *, index, steps):
        """Update by PPO, then interpolate between the old and the new weights."""
        before = [weight.detach().clone() for weight in self.policy.parameters()]
        stats = super().update(rollout, index=index, steps=steps)
        with torch.no_grad():
            for weight, old in zip(self.policy.parameters(), before, strict=True):
                weight.copy_(torch.lerp(old, weight, self.share))
        return stats
