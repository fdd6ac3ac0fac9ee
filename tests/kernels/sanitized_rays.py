"""All C++ kernels of a library given on the command line: odd rays, steps, lookahead, advantages."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import torch

from navi_core.config import EnvConfig, GateConfig
from navi_core.kernels import advantages
from navi_core.kernels.native import library as native
from navi_core.kernels.rays import cuda, tracer
from navi_core.scenes import load_gmdag
from navi_core.service.gate import DroneState, RolloutGate, choose_action
from navi_core.world import Field, NavigationEnv


def main(library: str, rounds: int, scenes: list[str]) -> None:
    loaded = native._declare(ctypes.CDLL(library))
    tracer.load_library = cuda.load_library = lambda: loaded
    field = Field([load_gmdag(scene) for scene in scenes], tracer="native", threads=2)
    twin = Field(field.scenes, tracer="cuda")
    odd = np.array([0.0, -0.0, 1.0, -1.0, 1e-38, -1e-30, 1e30, np.inf, -np.inf, np.nan], np.float32)
    rng = np.random.default_rng(0)
    low = np.min([s.bounds[0] for s in field.scenes], axis=0)
    high = np.max([s.bounds[1] for s in field.scenes], axis=0)
    for number in range(rounds):
        rows, rays = int(rng.integers(1, 12)), int(rng.integers(1, 100))
        origins = rng.uniform(low, high, (rows, 3)).astype(np.float32)
        directions = rng.normal(size=(rows if number % 2 else 1, rays, 3)).astype(np.float32)
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        for array in (origins, directions):
            wild = rng.random(array.shape) < 0.1 * (number % 3)
            array[wild] = rng.choice(odd, int(wild.sum()))
        if number % 5 == 0:  # exactly on the corners of cells and of the cube
            origins[:] = rng.choice([field.scenes[0].bounds[0], field.scenes[0].bounds[1]], rows)
        scene = rng.integers(0, len(scenes), rows).astype(np.int32)
        reach = float(rng.choice([0.0, 1.0, 100.0, np.inf]))
        depth, label = np.zeros((rows, rays), np.float32), np.zeros((rows, rays), np.int32)
        into = tuple(map(torch.from_numpy, (depth, label, depth > 0)))
        start, rows_of = torch.from_numpy(origins), torch.from_numpy(scene)
        # The field refuses numbers that are not finite; the kernels must end all the same.
        for lanes in tracer.LANES:
            kernels = tracer.NativeTracer(field.packed, 2, lanes)
            kernels.cast(start, torch.from_numpy(directions), rows_of, reach, 0, *into)
        kernels.distance(start, rows_of, torch.zeros(rows))
        kernels.within(start, rows_of, 0.5, torch.zeros(rows, dtype=torch.bool))
        scene += rng.integers(-1, 2, rows).astype(np.int32)  # on a device, rows may name scenes that are not there
        there = (torch.from_numpy(origins), torch.from_numpy(directions if number % 2 else directions[0]))
        twin.cast_rays(*there, torch.from_numpy(scene), reach, elevations=int(rng.integers(0, 9)))
        twin.distance(there[0], torch.from_numpy(scene))
        twin.within(there[0], torch.from_numpy(scene), 0.5)
    # Tiles that do not divide the panorama, few rows and many, episodes that end.
    config = EnvConfig(azimuth_bins=19, elevation_bins=7, max_steps=3, episodes_per_scene=1)
    for lanes in tracer.LANES:
        field._tracer = tracer.NativeTracer(field.packed, 2, lanes)
        for rows in (2, 9):
            env = NavigationEnv(field, rows, config, seed=lanes)
            for _ in range(12):
                env.step(torch.from_numpy(rng.uniform(-1.5, 1.5, (rows, 4))))
        judge(field, config.model_copy(update={"max_steps": 100}), rng)
    estimate(loaded, rng)
    sys.stdout.write("clean\n")


def judge(field: Field, config: EnvConfig, rng: np.random.Generator) -> None:
    """Let the gate look ahead: flights, panoramas and rewards from where the drones are."""
    env = NavigationEnv(field, 7, config, seed=1)
    gate, rows, obs = RolloutGate(field, config, GateConfig(), capacity=7), torch.arange(7), env.reset()
    for step in range(6):
        life = env.state_dict()
        drones = DroneState(rows, life["position"], life["yaw"].squeeze(1), life["velocity"], obs)
        if step == 0:
            gate.begin(drones)
        gate.remember(drones)
        chosen = choose_action(gate, drones, torch.from_numpy(rng.uniform(-1, 1, (7, 4))).float(), (0.5,))
        obs = env.step(chosen.command).obs


def estimate(loaded: ctypes.CDLL, rng: np.random.Generator) -> None:
    """Estimate advantages of rollouts whose rows do not fill a block."""
    advantages._library = lambda: loaded
    for steps, rows in ((1, 1), (5, 7), (3, 64), (2, 65)):
        for kind in (torch.float32, torch.float64):
            numbers = [torch.from_numpy(rng.normal(size=(steps, rows))).to(kind) for _ in range(5)]
            ends = [torch.from_numpy(rng.random((steps, rows)) < 0.3) for _ in range(2)]
            for weights in ((), numbers[3:]):
                advantages.advantages_of(*numbers[:3], *ends, *weights, gamma=0.99, lam=0.95)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
