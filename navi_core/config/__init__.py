"""Configuration classes of the engine: frozen pydantic models, one docstring per field, unknown keys refused.

Values are SI units; defaults are those of the specification. Nothing here imports torch, so that
the command line, the pipeline and tools may read configurations cheaply.
"""

from navi_core.config.algorithms import DPOConfig, GRPOConfig, PPOConfig, Schedule
from navi_core.config.base import Config, config_hash, parse_config
from navi_core.config.evaluate import BASELINES, DRIFTS, NOISY_SENSOR, PROTOCOLS, EvalConfig, ExpertConfig
from navi_core.config.learn import BCConfig, TrainConfig
from navi_core.config.offpolicy import (
    AdaptationConfig,
    DistributedConfig,
    DQNConfig,
    EarlyStopConfig,
    ReplayConfig,
    SmoothingConfig,
)
from navi_core.config.policy import PolicyConfig, ShaperConfig
from navi_core.config.service import (
    ActorConfig,
    ContinuousTrainingConfig,
    EnvironmentConfig,
    ExplorerConfig,
    GateConfig,
    WireConfig,
)
from navi_core.config.world import (
    GOAL_TERMS,
    REWARD_TERMS,
    BodiesConfig,
    CompileConfig,
    CorpusConfig,
    DynamicsConfig,
    EnvConfig,
    GoalConfig,
    OdometryConfig,
    RewardConfig,
    SensorConfig,
    SpawnConfig,
    compile_resolution,
)

__all__ = [
    "BASELINES",
    "DRIFTS",
    "GOAL_TERMS",
    "NOISY_SENSOR",
    "PROTOCOLS",
    "REWARD_TERMS",
    "ActorConfig",
    "AdaptationConfig",
    "BCConfig",
    "BodiesConfig",
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
    "GRPOConfig",
    "GateConfig",
    "GoalConfig",
    "OdometryConfig",
    "PPOConfig",
    "PolicyConfig",
    "ReplayConfig",
    "RewardConfig",
    "Schedule",
    "SensorConfig",
    "ShaperConfig",
    "SmoothingConfig",
    "SpawnConfig",
    "TrainConfig",
    "WireConfig",
    "compile_resolution",
    "config_hash",
    "parse_config",
]
