"""Scripted pilots: baselines that see observations only, a privileged planner, and the draws they fly by."""

from navi_core.pilots.farthest_ray import FarthestRayPilot
from navi_core.pilots.forward_plus import ForwardPlusPilot
from navi_core.pilots.frontier import FrontierPilot
from navi_core.pilots.pilot import Pilot, Pose
from navi_core.pilots.planner import PlannerPilot
from navi_core.pilots.random import RandomPilot
from navi_core.pilots.registry import PILOTS, build_pilot, register_pilot
from navi_core.pilots.wall_following import WallFollowingPilot

__all__ = [
    "PILOTS",
    "FarthestRayPilot",
    "ForwardPlusPilot",
    "FrontierPilot",
    "Pilot",
    "PlannerPilot",
    "Pose",
    "RandomPilot",
    "WallFollowingPilot",
    "build_pilot",
    "register_pilot",
]
