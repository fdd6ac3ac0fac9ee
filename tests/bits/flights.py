"""Small trainings of every learner, whose state two ways of running them must share.

    python -m tests.bits.flights FOLDER JSON

trains in FOLDER with the options of `train_once` and writes its state to FOLDER/state.pt; given again, it resumes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from navi_core.config import CompileConfig, EnvConfig, TrainConfig, parse_config
from navi_core.learn import UpdateMade, train
from navi_core.learn.parallel import joined_workers
from navi_core.learn.run.checkpoints import checkpoints_in
from navi_core.models import load_checkpoint
from navi_core.record import RunDirectory
from navi_core.record.events import EventBus
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag
from navi_core.world import Field, NavigationEnv

State = dict[str, torch.Tensor]
ROWS, ROLLOUT, UPDATES = 4, 32, 5
_BINS = {"azimuth_bins": 16, "elevation_bins": 8}
_QUIET = {"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0}
_ROLLED = {"rollout": ROLLOUT, "bptt": 8}
_SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"ppo": _ROLLED | {"minibatch": 6, "normalise_rewards": True}, "shaper": {"rnd_start": 1.0}},
    "grpo": {"grpo": _ROLLED | {"horizon": 8, "group_size": 4, "ref_kl_coef": 0.05}},
    "dpo": {"dpo": _ROLLED | {"horizon": 8, "minibatch": 4}},
    "dqn": {
        "dqn": _ROLLED | {"learning_starts": 64, "replay_ratio": 1.0, "n_step": 3},
        "replay": {"capacity": 256, "batch_size": 16},
        "shaper": _QUIET,
    },
}
"""Settings of the learners that fly through scenes."""
LEARNERS = ("ppo", "compiled ppo", "grpo", "dqn", "dpo", "bc", "apex")


def scene_files(folder: Path) -> list[Path]:
    """Compile two small apartments into a folder."""
    files = [folder / f"{number}.gmdag" for number in range(2)]
    for number, file in enumerate(files):
        if not file.exists():
            compile_mesh(generate_scene("apartment", number), CompileConfig(resolution=32)).save(file)
    return files


def train_once(
    folder: Path, learner: str, scenes: list[Path], *, threads: int = 1, tracer: str = "", kill: int = 0, drop: int = 0
) -> State:
    """Train or resume one run; return its weights and optimiser moments.

    Args:
        folder: Folder of the run.
        learner: One of `LEARNERS`.
        scenes: Compiled scenes.
        threads: Threads of torch and of the kernels.
        tracer: Tracer of the scenes; "native 4" holds the C++ kernels to four lanes.
        kill: Kill this process by SIGKILL at this update of this start; 0: never.
        drop: End this start at this update without a last checkpoint, as a kill does; 0: never.
    """
    seen: list[UpdateMade] = []

    def count(update: UpdateMade) -> None:
        seen.append(update)
        if len(seen) == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    options = {"stop": lambda: bool(drop) and len(seen) >= drop, "events": EventBus({UpdateMade: count})}
    known = set(folder.glob("runs/*/checkpoints/*"))
    {"bc": _clone, "apex": _apex, "compiled ppo": _compiled}.get(learner, _fly)(
        folder, learner, scenes, threads, tracer, options
    )
    files = checkpoints_in(next((folder / "runs").glob("*/checkpoints")))
    if drop:
        for file in {files[-1], files[-1].with_suffix(".replay")} - known:
            file.unlink(missing_ok=True)
    return {} if drop else state_of(files[-1])


def state_of(file: Path) -> State:
    """Return the weights and the optimiser's moments of a checkpoint."""
    checkpoint = load_checkpoint(file)
    moments = (checkpoint.optimizer_state or {}).get("state", {})
    found = {f"{number} {name}": x for number, part in moments.items() for name, x in part.items() if name != "step"}
    return dict(checkpoint.policy_state) | {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def _config(learner: str, threads: int, **changes: Any) -> TrainConfig:
    data = {"actors": ROWS, "seed": 3, "threads": threads, "device": "cpu", "env": _BINS, "checkpoint_every": 1}
    policy = _BINS | {"encoder": "ring_cnn", "core": "gru", "aux": "off" if learner == "dqn" else "full"}
    data |= {"algorithm": learner, "policy": policy, "total_steps": ROWS * ROLLOUT * UPDATES}
    return parse_config(TrainConfig, data | changes)


def _fly(folder: Path, learner: str, scenes: list[Path], threads: int, tracer: str, options: dict[str, Any]) -> None:
    config = _config(learner, threads, **_SETTINGS[learner])
    with joined_workers() as workers:
        first, count = workers.rows(ROWS)
        env = NavigationEnv(field_of(scenes, threads, tracer), count, config.env, config.seed, first_row=first)
        if not workers.first:
            train(config, None, env=env, workers=workers, **options)
            return
        with RunDirectory.open(folder / "runs", asset="bits", partition="p", config=config) as run:
            train(config, run, env=env, log=run.metric_log(folder / "outbox"), workers=workers, **options)


def field_of(scenes: list[Path], threads: int, tracer: str) -> Field:
    """Return the scenes' field for a tracer, "native 4" with a number of lanes."""
    from navi_core.kernels.rays.tracer import NativeTracer

    name, _, lanes = tracer.partition(" ")
    field = Field([load_gmdag(file) for file in scenes], threads=threads, tracer=name or None)
    if lanes:
        field._tracer = NativeTracer(field.packed, threads, int(lanes))
    return field


def _compiled(folder: Path, _: str, __: list[Path], threads: int, ___: str, options: dict[str, Any]) -> None:
    from navi_core.tasks import reference_task

    changes = {
        "task": "cart_pole",
        "task_options": {"masked": False},
        "policy": {"core": "none", "aux": "off", "width": 16},
        "ppo": _ROLLED | {"minibatch": 8},
        "shaper": _QUIET,
    }
    config = _config("ppo", threads, **changes)
    env = reference_task("cart_pole", ROWS, config.seed, masked=False)
    with RunDirectory.open(folder / "runs", asset="bits", partition="p", config=config) as run:
        train(config, run, env=env, log=run.metric_log(folder / "outbox"), **options)


def _clone(folder: Path, _: str, __: list[Path], threads: int, ___: str, options: dict[str, Any]) -> None:
    from navi_core.demos import index_folder, load_dataset, save_demonstration
    from navi_core.learn import clone
    from tests.demos.conftest import make_demo

    demos = folder / "demos"
    if not demos.exists():
        demos.mkdir(parents=True)
        for number in range(4):
            save_demonstration(demos / f"{number}.npz", make_demo(40, seed=number, scene=f"room{number}"))
        index_folder(demos, [f"{number}.npz" for number in range(4)])
    data = load_dataset([demos])
    rule = {"data": data.content_hash, "epochs": UPDATES, "sequences": 4, "bptt": 8, "learning_rate": 3e-3}
    policy = _BINS | {"encoder": "ring_cnn", "core": "gru"}
    config = _config("bc", threads, bc=rule, policy=policy, shaper={"memory_capacity": 64}, checkpoint_every=50)
    with RunDirectory.open(folder / "runs", asset="bits", partition="p", config=config) as run:
        clone(config, run, data, log=run.metric_log(folder / "outbox"), **options)


def _apex(folder: Path, _: str, __: list[Path], threads: int, ___: str, options: dict[str, Any]) -> None:
    from navi_core.scale import apex
    from tests.scale.builders import apex_config, fly_apex

    apex._SECONDS_BETWEEN_ROWS = 0.0  # a kill at an update must not depend on the speed of the machine
    fly_apex(folder, apex_config(threads=threads, checkpoint_every=64), events=options["events"])


def fly_environment(
    scenes: list[Path], parts: tuple[int, ...] = (6,), *, threads: int = 1, tracer: str = "", steps: int = 60
) -> State:
    """Fly rows of one environment, split into parts, by fixed actions; return all observations and rewards."""
    config = EnvConfig(**_BINS, max_steps=25)
    draws = torch.Generator().manual_seed(0)
    actions = torch.rand(steps, sum(parts), 4, generator=draws) * 2 - 1
    flown, first = [], 0
    for count in parts:
        env = NavigationEnv(field_of(scenes, threads, tracer), count, config, 5, first_row=first)
        obs = [env.reset().clone()]
        rewards = []
        for step in range(steps):
            batch = env.step(actions[step, first : first + count])
            obs.append(batch.obs.clone())
            rewards.append(batch.reward.clone())
        flown.append((torch.stack(obs, 1), torch.stack(rewards, 1)))
        first += count
    obs, rewards = (torch.cat(part) for part in zip(*flown, strict=True))
    return {"depth": obs[:, :, 0], "semantic": obs[:, :, 1].long(), "valid": obs[:, :, 2], "reward": rewards}


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    torch.set_num_threads(given.get("threads", 1))
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    if given.pop("environment", False):
        state = fly_environment(**given | {"scenes": [Path(file) for file in given["scenes"]]})
    else:
        state = train_once(place, **given | {"scenes": [Path(file) for file in given["scenes"]]})
    if os.environ.get("RANK", "0") == "0":
        torch.save(state, place / "state.pt")
