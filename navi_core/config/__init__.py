"""Every setting of the engine: frozen pydantic models, one docstring per field, unknown keys refused.

Values are SI units; defaults are those of the specification. Nothing here imports torch, so that
the command line, the pipeline and tools may read configurations cheaply.
"""

from __future__ import annotations

from navi_core.config.ablations import AblationConfig
from navi_core.config.base import Config, config_hash, parse_config
from navi_core.config.continuous import ContinuousTrainingConfig
from navi_core.config.demos import ExpertConfig
from navi_core.config.dpo import DPOConfig
from navi_core.config.evaluate import BASELINES, NOISY_SENSOR, PROTOCOLS, EvalConfig
from navi_core.config.explore import ExplorerConfig
from navi_core.config.fast import FastPPOConfig
from navi_core.config.goal import GOAL_TERMS, GoalConfig
from navi_core.config.grpo import GRPOConfig
from navi_core.config.learn import BCConfig, TrainConfig
from navi_core.config.nightly import NightlyConfig
from navi_core.config.offpolicy import DistributedConfig, DQNConfig, ReplayConfig
from navi_core.config.policy import PolicyConfig, ShaperConfig
from navi_core.config.ppo import PPOConfig
from navi_core.config.scenes import CompileConfig, CorpusConfig, compile_resolution
from navi_core.config.schedule import Schedule
from navi_core.config.service import ActorConfig, EnvironmentConfig, GateConfig
from navi_core.config.smoothing import AdaptationConfig, EarlyStopConfig, SmoothingConfig
from navi_core.config.studies import StudyConfig
from navi_core.config.sweeps import SweepConfig
from navi_core.config.wire import WireConfig
from navi_core.config.world import REWARD_TERMS, DynamicsConfig, EnvConfig, RewardConfig, SensorConfig, SpawnConfig

__all__ = [
    "BASELINES",
    "GOAL_TERMS",
    "NOISY_SENSOR",
    "PROTOCOLS",
    "REWARD_TERMS",
    "AblationConfig",
    "ActorConfig",
    "AdaptationConfig",
    "BCConfig",
    "CompileConfig",
    "Config",
    "ContinuousTrainingConfig",
    "CorpusConfig",
    "DPOConfig",
    "DQNConfig",
    "DistributedConfig",
    "DynamicsConfig",
    "EarlyStopConfig",
    "EnvConfig",
    "EnvironmentConfig",
    "EvalConfig",
    "ExpertConfig",
    "ExplorerConfig",
    "FastPPOConfig",
    "GRPOConfig",
    "GateConfig",
    "GoalConfig",
    "NightlyConfig",
    "PPOConfig",
    "PolicyConfig",
    "ReplayConfig",
    "RewardConfig",
    "Schedule",
    "SensorConfig",
    "ShaperConfig",
    "SmoothingConfig",
    "SpawnConfig",
    "StudyConfig",
    "SweepConfig",
    "TrainConfig",
    "WireConfig",
    "compile_resolution",
    "config_hash",
    "parse_config",
]
