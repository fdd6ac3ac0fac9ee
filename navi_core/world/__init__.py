"""Simulation of drones in 3D scenes: ray-cast fields, spherical depth sensor, dynamics, rewards, environments."""

from navi_core.world.captured import CapturedStep
from navi_core.world.dynamics import Dynamics, Motion
from navi_core.world.environment import NavigationEnv
from navi_core.world.field import Field, RayHits
from navi_core.world.floor.reachable import FloorMap, FloorView
from navi_core.world.interface import Environment, EnvironmentWrapper, Poses, StepBatch, StepInfo
from navi_core.world.rewards import register_reward
from navi_core.world.sensor.panorama import SphericalSensor, denormalise_depth, normalise_depth, spherical_directions
from navi_core.world.spawning import Verdict, scene_verdict, spawn_pool

__all__ = [
    "CapturedStep",
    "Dynamics",
    "Environment",
    "EnvironmentWrapper",
    "Field",
    "FloorMap",
    "FloorView",
    "Motion",
    "NavigationEnv",
    "Poses",
    "RayHits",
    "SphericalSensor",
    "StepBatch",
    "StepInfo",
    "Verdict",
    "denormalise_depth",
    "normalise_depth",
    "register_reward",
    "scene_verdict",
    "spawn_pool",
    "spherical_directions",
]
