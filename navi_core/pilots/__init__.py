"""Scripted policies (pilots): baselines on observations, a privileged planner, and their random numbers."""

from navi_core.pilots.compass import CompassPilot
from navi_core.pilots.frontier import FrontierPilot
from navi_core.pilots.oracle import OraclePilot
from navi_core.pilots.pilot import Pilot, Pose
from navi_core.pilots.planner import PlannerPilot
from navi_core.pilots.reactive import FarthestRayPilot, ForwardPlusPilot, RandomPilot, WallFollowingPilot
from navi_core.pilots.registry import PILOTS, build_pilot, register_pilot

__all__ = [
    "PILOTS",
    "CompassPilot",
    "FarthestRayPilot",
    "ForwardPlusPilot",
    "FrontierPilot",
    "OraclePilot",
    "Pilot",
    "PlannerPilot",
    "Pose",
    "RandomPilot",
    "WallFollowingPilot",
    "build_pilot",
    "register_pilot",
]
