"""Ape-X: distributed Double DQN with actors, replay shards and learners, in one process or on Ray.

Everything imports without Ray; `launch` imports it on first use.
"""

from navi_core.scale.apex import check_apex, train_apex
from navi_core.scale.cluster import ApexActor, LocalCluster
from navi_core.scale.messages import ParameterHub, Parameters
from navi_core.scale.sharded_replay import ReplayShard, ShardedReplay

__all__ = [
    "ApexActor",
    "LocalCluster",
    "ParameterHub",
    "Parameters",
    "ReplayShard",
    "ShardedReplay",
    "check_apex",
    "train_apex",
]
