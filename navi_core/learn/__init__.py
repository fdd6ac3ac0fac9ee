"""Training algorithms and run loops: rollouts, advantages, PPO, GRPO, DPO, Double DQN, behaviour cloning."""

from navi_core.learn.algorithms.cloning import CloningLearner, cloning_loss
from navi_core.learn.algorithms.dpo import DPOLearner
from navi_core.learn.algorithms.dqn import DQNLearner
from navi_core.learn.algorithms.gradient_steps import GradientSteps, UpdateStats
from navi_core.learn.algorithms.grpo import GRPOLearner
from navi_core.learn.algorithms.ppo import PPOLearner
from navi_core.learn.algorithms.registry import KeepsData, Learner, build_learner, register_learner
from navi_core.learn.estimators.drift_smoother import DriftSmoother, free_energy
from navi_core.learn.estimators.losses import double_dqn_targets, gae, gae_reference, group_advantages, n_step_returns
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.learn.rollout.collector import Collector, RolloutStats
from navi_core.learn.rollout.storage import Rollout
from navi_core.learn.run.cloning_run import clone
from navi_core.learn.run.early_stopping import EarlyStopController
from navi_core.learn.run.loop import train
from navi_core.learn.run.records import TrainResult, console_progress
from navi_core.record.events import Event, EventBus, UpdateMade, register_callback

__all__ = [
    "CloningLearner",
    "Collector",
    "DPOLearner",
    "DQNLearner",
    "DriftSmoother",
    "EarlyStopController",
    "Event",
    "EventBus",
    "GRPOLearner",
    "GradientSteps",
    "KeepsData",
    "Learner",
    "PPOLearner",
    "PrioritizedReplay",
    "Rollout",
    "RolloutStats",
    "TrainResult",
    "UpdateMade",
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
    "register_callback",
    "register_learner",
    "train",
]
