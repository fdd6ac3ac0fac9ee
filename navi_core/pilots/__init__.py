"""Scripted pilots: baselines that see observations only, and the counter-based draws they fly by."""

from navi_core.pilots.forward_plus import ForwardPlusPilot
from navi_core.pilots.pilot import Pilot
from navi_core.pilots.random import RandomPilot
from navi_core.pilots.registry import PILOTS, build_pilot

__all__ = ["PILOTS", "ForwardPlusPilot", "Pilot", "RandomPilot", "build_pilot"]
