"""Learning: rollouts, advantages, PPO, behaviour cloning, and the run loops."""

from navi_core.learn.advantages import gae, gae_reference, group_advantages
from navi_core.learn.clone_run import clone
from navi_core.learn.cloning import CloningLearner, cloning_loss
from navi_core.learn.collector import Collector, Environment, RolloutStats
from navi_core.learn.dpo import DPOLearner
from navi_core.learn.dqn import DQNLearner
from navi_core.learn.drift_smoother import DriftSmoother, free_energy
from navi_core.learn.early_stopping import EarlyStopController
from navi_core.learn.grpo import GRPOLearner
from navi_core.learn.loop import train
from navi_core.learn.ppo import PPOLearner
from navi_core.learn.progress import Progress, console_progress
from navi_core.learn.registry import KeepsData, Learner, build_learner, register_learner
from navi_core.learn.replay import PrioritizedReplay
from navi_core.learn.result import TrainResult
from navi_core.learn.rollout import Rollout
from navi_core.learn.steps import GradientSteps, UpdateStats
from navi_core.learn.targets import double_dqn_targets, n_step_returns

__all__ = [
    "CloningLearner",
    "Collector",
    "DPOLearner",
    "DQNLearner",
    "DriftSmoother",
    "EarlyStopController",
    "Environment",
    "GRPOLearner",
    "GradientSteps",
    "KeepsData",
    "Learner",
    "PPOLearner",
    "PrioritizedReplay",
    "Progress",
    "Rollout",
    "RolloutStats",
    "TrainResult",
    "UpdateStats",
    "build_learner",
    "clone",
    "cloning_loss",
    "console_progress",
    "double_dqn_targets",
    "free_energy",
    "gae",
    "gae_reference",
    "group_advantages",
    "n_step_returns",
    "register_learner",
    "train",
]
