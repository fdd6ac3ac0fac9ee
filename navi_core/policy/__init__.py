"""Policy networks: encoders, temporal (recurrent) cores, actor-critic and Q heads, curiosity, reward shaping."""

from navi_core.policy.cores import TemporalCore, build_core, register_core, ssd_scan
from navi_core.policy.encoders import build_encoder, register_encoder
from navi_core.policy.navigation_policy import (
    ActOutput,
    EvaluateOutput,
    NavigationPolicy,
    build_policy,
    count_macs,
    custom_networks,
    parameter_counts,
    policy_macs,
)
from navi_core.policy.observation import ObservationScaling
from navi_core.policy.shaper import RND, EpisodicMemory, RewardShaper, ShapedReward

__all__ = [
    "RND",
    "ActOutput",
    "EpisodicMemory",
    "EvaluateOutput",
    "NavigationPolicy",
    "ObservationScaling",
    "RewardShaper",
    "ShapedReward",
    "TemporalCore",
    "build_core",
    "build_encoder",
    "build_policy",
    "count_macs",
    "custom_networks",
    "parameter_counts",
    "policy_macs",
    "register_core",
    "register_encoder",
    "ssd_scan",
]
