"""Serving: environment and actor servers on the wire protocol, safety gate, continuous (online) training."""

from navi_core.config import ContinuousTrainingConfig
from navi_core.service.gate import GateVerdict, RolloutGate
from navi_core.service.learning.continuous_trainer import ContinuousTrainer, TrainingMetrics
from navi_core.service.learning.experience import Experience
from navi_core.service.learning.replay_buffer import ExperienceReplayBuffer

__all__ = [
    "ContinuousTrainer",
    "ContinuousTrainingConfig",
    "Experience",
    "ExperienceReplayBuffer",
    "GateVerdict",
    "RolloutGate",
    "TrainingMetrics",
]
