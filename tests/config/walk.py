"""Short real trainings with one setting changed, compared with the same training without the change."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navi_core.cli.training.inputs import compiled_scenes
from navi_core.config import CompileConfig, CorpusConfig, TrainConfig, parse_config
from navi_core.config.base import settings_of
from navi_core.config.readers import SET, UNSET, holds, missing_reader, rules_of, value_at
from navi_core.demos import index_folder, load_dataset, save_demonstration, write_pairs
from navi_core.errors import ConfigError, SceneError
from navi_core.learn import clone, train
from navi_core.models import load_checkpoint
from navi_core.presets import merge, nested
from navi_core.record import RunDirectory
from navi_core.scale.launch import launch_apex
from navi_core.scenes import compile_corpus, compile_mesh, discover, generate_scene
from navi_core.tasks import reference_task
from navi_core.world import Field
from tests.conftest import box_triangles, mesh_of
from tests.demos.conftest import make_demo
from tests.learn.algorithms.conftest import teach
from tests.learn.algorithms.test_dpo import some_pairs

ROWS, BINS = 6, {"azimuth_bins": 16, "elevation_bins": 8}
TIMED = ("sps", "env_ms", "ppo_update_ms", "zero_wait_ratio", "_per_s", "_s", "seconds")
"""Ends of the names of metrics that go by the clock."""
_ROLLOUT = {"rollout": 16, "bptt": 8, "learning_rate": 1e-3}

FLIGHT: dict[str, Any] = {
    "actors": ROWS,
    "threads": 1,
    "device": "cpu",
    "total_steps": ROWS * 16 * 3,
    "checkpoint_every": ROWS * 16,
    "keep_checkpoints": 2,
    "env": {
        **BINS,
        "max_steps": 12,
        "episodes_per_scene": 1,
        "void_starvation": 0.6,
        "void_grace": 3,
        "spawn": {"grid": [3, 3, 3], "probe": [16, 8], "scattered": 4},
        "reward": {"preset": "navi9"},
    },
    "policy": {"encoder": "ring_cnn", "core": "gru", "width": 32, "aux": "full", "q_hidden": 16},
    "shaper": {"rnd_decay_steps": 300, "loop_threshold": 0.2, "memory_exclusion": 3, "memory_capacity": 64 * ROWS},
    "ppo": {**_ROLLOUT, "minibatch": 4, "target_kl": 10.0},
    "grpo": {**_ROLLOUT, "group_size": 3, "horizon": 6},
    "dpo": {**_ROLLOUT, "horizon": 6, "minibatch": 4, "pair_buffer": 12},
    "dqn": {**_ROLLOUT, "learning_starts": 32, "n_step": 3},
    "replay": {"batch_size": 32, "capacity": 512},
    "kernel_smoothing": {"latent_dim": 16, "k": 4},
    "early_stopping": {"eval_interval": 96},
    "distributed": {"actors_per_gpu": 2, "replay_shards": 2, "param_sync_interval": 4},
}
TASK = {"task": "cart_pole", "policy": {"core": "none", "aux": "off"}, "task_options": {"masked": False}}
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("train", {"algorithm": "ppo"}),
    "grpo": ("train", {"algorithm": "grpo"}),
    "dpo": ("train", {"algorithm": "dpo"}),
    "dqn": ("train", {"algorithm": "dqn"}),
    "bc": (
        "bc",
        {"algorithm": "bc", "bc": {"epochs": 3, "sequences": 4, "learning_rate": 3e-3}, "checkpoint_every": 200},
    ),
    "cart_pole": ("train", {"algorithm": "ppo", **TASK}),
    "scenes": ("train", {"algorithm": "ppo", "compile": {"resolution": 64}, "corpus": {"families": {"maze": [0]}}}),
    "learner": ("learner", {"algorithm": "dqn", **TASK, "actors": 4, "total_steps": 512}),
}
"""Name → command and settings over those of `FLIGHT`."""


@cache
def scenes() -> tuple[Any, ...]:
    """Return an apartment, and a box without one wall and its roof, from which drones get lost."""
    open_box = box_triangles((-3, 0, -3), (3, 2.5, 3))[2:]
    open_box = np.concatenate((open_box[:4], open_box[6:]))
    settings = CompileConfig(resolution=128)
    return (
        compile_mesh(generate_scene("apartment", 0), settings),
        compile_mesh(mesh_of(open_box, "open"), settings),
    )


@cache
def demonstrations(folder: Path) -> Any:
    """Return demonstrations of five scenes, saved in a folder."""
    for number in range(5):
        demo = teach(make_demo(40, seed=number, scene=f"room{number}", starts=(0, 11, 31)), number)
        save_demonstration(folder / f"{number}.npz", demo)
    index_folder(folder, [f"{n}.npz" for n in range(5)])
    return load_dataset([folder])


def _scene_digest(config: TrainConfig) -> str:
    """Return the digest of the compiled scenes of a configuration: geometry and names, not their hashes."""
    digest = hashlib.sha256()
    for scene in (each.scene for each in compiled_scenes(config, jobs=1)):
        cells = scene.dag
        digest.update(scene.triangles.tobytes() + scene.triangle_semantic.tobytes())
        digest.update(repr((scene.name, scene.resolution, scene.bounds.tolist(), scene.semantic_names)).encode())
        digest.update(b"".join(np.ascontiguousarray(x).tobytes() for x in (cells.children, cells.bounds, cells.items)))
    return digest.hexdigest()


def write_room(path: Path, height: float) -> Path:
    """Write an OBJ file with two named objects, walls and a table."""
    lines, first = [], 1
    for name, low, high in (("wall", (-2, 0, -2), (2, height, 2)), ("table", (-0.5, 0, -0.5), (0.5, 0.7, 0.5))):
        triangles = box_triangles(low, high)
        lines += [f"o {name}", *(f"v {x} {y} {z}" for x, y, z in triangles.reshape(-1, 3))]
        lines += [f"f {n} {n + 1} {n + 2}" for n in range(first, first + 36, 3)]
        first += 36
    path.write_text("\n".join(lines) + "\n")
    return path


class Walker:
    """Runs trainings under a folder and remembers what each came to.

    Args:
        folder: Where runs, demonstrations and pairs lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "demos").mkdir()
        self.data = demonstrations(folder / "demos")
        self.pairs = folder / "pairs.jsonl"
        write_pairs(self.pairs, some_pairs())
        self.meshes = folder / "meshes"
        self.meshes.mkdir()
        self.rooms = [str(write_room(self.meshes / f"room{n}.obj", 2.5 + n)) for n in range(2)]
        compile_corpus(
            discover(CorpusConfig(scenes=tuple(self.rooms))), folder / "compiled", CompileConfig(resolution=64)
        )
        self.values = VALUES | {
            "corpus.scenes": [self.rooms],
            "corpus.root": [str(self.meshes)],
            "corpus.manifest": [str(folder / "compiled" / "manifest.json")],
            "dpo.pairs": [str(self.pairs)],
        }
        self.switches = {
            "shaper.rnd_start": 0.5,
            "shaper.loop_coefficient": 0.5,
            "grpo.ref_kl_coef": 0.1,
            "kernel_smoothing.free_energy_weight": 0.1,
            "dpo.pairs": str(self.pairs),
        }
        """Values that switch on what a setting acts in."""
        self._seen: dict[str, str] = {}
        self.runs = 0

    def settings(self, scenario: str) -> dict[str, Any]:
        """Return the nested settings of a scenario."""
        settings = merge(FLIGHT, SCENARIOS[scenario][1])
        if scenario == "bc":
            settings = merge(settings, {"bc": {"data": self.data.content_hash}})
        if scenario == "scenes":
            settings = merge(settings, {"corpus": {"scenes": self.rooms[:1]}})
        return settings

    def outcome(self, scenario: str, settings: dict[str, Any], name: str = "") -> str:
        """Return the digest of a training's weights, metrics, checkpoints and end.

        For a setting of the sections corpus and compile it is that of the scenes that the training gets.

        Raises:
            ConfigError: A setting is refused.
        """
        config = parse_config(TrainConfig, settings)
        if name.partition(".")[0] in ("corpus", "compile"):
            return _scene_digest(config)
        key = f"{scenario} {config.model_dump_json()}"
        if key not in self._seen:
            self._seen[key] = self._run(SCENARIOS[scenario][0], config)
        return self._seen[key]

    def _run(self, command: str, config: TrainConfig) -> str:
        self.runs += 1
        root = self.folder / f"run{self.runs}"
        torch.set_num_threads(1)
        with RunDirectory.open(root, asset="walk", partition="p", config=config) as run:
            log = run.metric_log(root / "outbox")
            if command == "bc":
                result = clone(config, run, self.data, log=log)
            elif command == "learner":
                result = launch_apex(config, run, scenes=(), log=log, in_process=True)
            elif config.task is not None:
                env = reference_task(config.task, config.actors, config.seed, **config.task_options)
                result = train(config, run, env=env, log=log)
            else:
                result = train(config, run, field=Field(list(scenes()), device="cpu", threads=1), log=log)
            kept = sorted(file.name for file in run.checkpoints.iterdir())
        digest = hashlib.sha256()
        for name, weight in sorted(load_checkpoint(result.checkpoint).policy_state.items()):
            digest.update(name.encode() + weight.numpy().tobytes())
        rows = []
        for file in (root / "outbox").glob("*-metrics.ndjson"):
            rows += [json.loads(line) for line in file.read_text().splitlines()[1:]]
        metrics = sorted((r["step"], r["name"], repr(r["value"])) for r in rows if not r["name"].endswith(TIMED))
        if command == "learner":
            metrics = []  # its rows come by the clock
        digest.update(json.dumps([metrics, kept, result.steps, result.reason]).encode())
        shutil.rmtree(root)
        return digest.hexdigest()

    def judge(self, scenario: str, name: str) -> str:
        """Return what becomes of a setting in a scenario: acts, warned, refused or inert.

        A setting that the scenario does not read is warned of. One that it reads is changed, together with the
        settings that let it act.
        """
        settings = self.together(scenario, name)
        before = parse_config(TrainConfig, settings)
        if not self.reads(scenario, name, before):
            return "warned"
        values = self.candidates(before, name)
        reference, refused = self.outcome(scenario, settings, name) if values else "", 0
        for value in values:
            changed = merge(settings, nested(name.split("."), value))
            try:
                if self.outcome(scenario, changed, name) != reference:
                    return "acts"
            except (ConfigError, SceneError):
                refused += 1
        return "refused" if refused == len(values) > 0 else "inert"

    def falsely_warned(self, scenario: str, name: str) -> bool:
        """Return whether a setting that the scenario is warned of changes its outcome."""
        settings = self.settings(scenario)
        before = parse_config(TrainConfig, settings)
        for value in self.candidates(before, name):
            changed = merge(settings, nested(name.split("."), value))
            with suppress(ConfigError):
                if not self.reads(scenario, name, parse_config(TrainConfig, changed)):
                    return self.outcome(scenario, changed) != self.outcome(scenario, settings)
        return False

    def reads(self, scenario: str, name: str, config: TrainConfig) -> bool:
        """Return whether the table has a scenario read a setting, on a CPU."""
        return missing_reader(name, config, {"command": SCENARIOS[scenario][0], "device": "cpu"}) is None

    def together(self, scenario: str, name: str) -> dict[str, Any]:
        """Return a scenario's settings with those that let a setting act; without them where these are refused."""
        settings = self.settings(scenario)
        with suppress(ConfigError):
            parse_config(TrainConfig, together := merge(settings, self.companions(scenario, name)))
            return together
        return settings

    def companions(self, scenario: str, name: str) -> dict[str, Any]:
        """Return the settings with which a setting acts: its conditions in the table, and some of `COMPANIONS`."""
        added = COMPANIONS.get(name, {})
        settings = merge(self.settings(scenario), added)
        for _ in range(3):
            config = parse_config(TrainConfig, settings)
            for alternatives in rules_of(name):
                for path, condition in alternatives[0].items():
                    fixed = path in ("command", "device", "algorithm", "task") or path.startswith("$")
                    if fixed or holds(condition, value_at(config, path, {})):
                        continue
                    off = [] if path == "corpus.scenes" else None
                    value = self.switches.get(path, True) if condition == SET else off
                    if condition not in (SET, UNSET):
                        value = condition[0]
                    added = merge(added, nested(path.split("."), value))
            settings = merge(settings, added)
        return added

    def candidates(self, config: TrainConfig, name: str) -> list[Any]:
        """Return other values of a setting, the likeliest to act first."""
        if name in self.values:
            return self.values[name]
        value = reduce(getattr, name.split("."), config)
        if isinstance(value, bool):
            return [not value]
        if isinstance(value, int):
            return [value + 1, value * 2, value // 2]
        if isinstance(value, float):
            return [value * 1.5 + 0.05 * (value == 0), value * 0.5, value * 0.9 + 0.01]
        if isinstance(value, str):
            allowed = next(each.allowed for each in settings_of(TrainConfig()) if each.name == name)
            return [each for each in allowed.split(", ") if each != value]
        if isinstance(value, tuple) and value and isinstance(value[0], int | float):
            return [[type(v)(v * factor) for v in value] for factor in (0.5, 2)]
        return []


_VOID = {"env": {"void_starvation": 0.2, "void_grace": 0, "void_ends": "terminated"}}
_LONG = {"total_steps": ROWS * 16 * 8, "early_stopping": {"enabled": True, "window": 2, "patience": 2}}
_ADAPTS = {"total_steps": ROWS * 16 * 8, "adaptation": {"enabled": True, "min_dwell": 1}}
_CLOSED = {"kernel_smoothing": {"td_var_min": 1e9, "disagreement_min": 1e9}}
_LINEAR = {"learning_rate": {"shape": "linear", "end": 1e-4}}
COMPANIONS: dict[str, dict[str, Any]] = {
    "env.void_grace": _VOID,
    "env.void_ends": _VOID,
    "env.dynamics.limiter_floor": {"env": {"dynamics": {"limiter_distance": 5.0}}},
    "env.goal.success_radius": {"env": {"goal": {"stop_speed": 50.0}}},
    "env.goal.stop_speed": {"env": {"goal": {"success_radius": 50.0}}},
    "env.goal.success_reward": {"env": {"goal": {"success_radius": 50.0, "stop_speed": 50.0}}},
    "policy.area_attention": {"policy": {"encoder": "rayvit", "patch": 2}},
    "policy.anticipation": {"policy": {"privileged_critic": True}},
    "policy.patch": {"policy": {"encoder": "rayvit", "patch": 4}},
    "shaper.memory_capacity": {"shaper": {"loop_coefficient": 2.0, "memory_capacity": ROWS * 8}},
    "checkpoint_every": {"bc": {"learning_rate": 0.5}},
    "grpo.min_steps": _VOID,
    "dpo.min_steps": _VOID,
    "early_stopping.hysteresis_pct": _LONG,
    "early_stopping.reward_ema_beta": _LONG,
    "early_stopping.window": _LONG,
    "early_stopping.td_var_floor": _LONG,
    "early_stopping.slump": _LONG,
    "early_stopping.rise": _LONG,
    "early_stopping.patience": _LONG,
    "kernel_smoothing.gate_by_td_variance": _CLOSED,
    "kernel_smoothing.td_var_min": _CLOSED,
    "kernel_smoothing.disagreement_min": _CLOSED,
    **{
        f"adaptation.{name}": _ADAPTS
        for name in ("rate", "min_dwell", "alpha_step_bounds", "tau_bounds", "k_bounds", "learning_rate_bounds")
    },
}
"""Setting → settings without which it has nothing to act on in so short a run."""
VALUES: dict[str, list[Any]] = {
    "task": ["acrobot", "pendulum"],
    "device": ["cuda"],
    "dqn.max_grad_norm": [0.01],
    "dqn.target_period": [2],
    "task_options": [{"masked": True}],
    "learner_options": [{"decay": 0.9}],
    "execution": ["graph"],
    "env.reward.weights": [{"clearance": 0.5}],
    "env.goal.success_radius": [50.0],
    "env.goal.stop_speed": [50.0],
    "grpo.ref_sync_every_updates": [1],
    "env.dynamics.limiter_floor": [1.0],
    "env.void_grace": [9],
    "env.sensor.profiles": [["camera"]],
    "env.sensor.delay": [[1, 2]],
    "env.dynamics.max_acceleration": [1.0],
    "env.dynamics.max_yaw_acceleration": [0.5],
    "env.dynamics.height_limit": [1.5],
    "env.bodies.radius": [[0.1]],
    "env.bodies.smoothing": [[0.1, 0.2]],
    "policy.anticipation": [1.0],
    "policy.patch": [2],
    "shaper.memory_capacity": [ROWS * 4, ROWS * 16],
    "ppo.schedules": [_LINEAR],
    "grpo.schedules": [_LINEAR],
    "dpo.schedules": [_LINEAR],
    "dqn.schedules": [_LINEAR],
    "ppo.std_limit": [0.3],
    "ppo.value_clip": [0.01],
    "ppo.reward_clip": [0.01],
    "ppo.rho_clip": [0.9],
    "ppo.c_clip": [0.9],
    "ppo.target_kl": [1e-9],
    "ppo.microbatch": [2],
    "grpo.microbatch": [2],
    "dpo.microbatch": [2],
    "dqn.microbatch": [2],
    "grpo.min_steps": [6],
    "dpo.min_steps": [6],
    "bc.validation": [0.4],
    "dpo.pair_buffer": [2],
    "dqn.learning_starts": [150],
    "dqn.burn_in": [8],
    "replay.beta_steps": [50],
    "kernel_smoothing.td_var_min": [0.0],
    "kernel_smoothing.disagreement_min": [0.0],
    "adaptation.min_dwell": [5],
    "adaptation.alpha_step_bounds": [[0.4, 0.5]],
    "adaptation.tau_bounds": [[0.5, 1.0]],
    "adaptation.k_bounds": [[2, 3]],
    "adaptation.learning_rate_bounds": [[1e-5, 1.1e-5]],
    "kernel_smoothing.sigma_min": [0.9],
    "kernel_smoothing.sigma_max": [0.01],
    "kernel_smoothing.latent_dim": [8],
    "early_stopping.hysteresis_pct": [0.9],
    "early_stopping.td_var_floor": [1e9],
    "early_stopping.slump": [0.0],
    "early_stopping.rise": [10.0],
    "early_stopping.plateau_threshold": [0.99, 0.01],
    "distributed.param_sync_interval": [1000],
    "compile.semantics": ["none"],
    "compile.decimate": [1.0],
    "compile.max_leaf_triangles": [1],
    "corpus.families": [{"apartment": [0]}],
}
"""Setting → values to try, where the usual ones (more, less, another name) do not show that it acts."""
