"""Readers of the files that commit ed13726 wrote (`ed13726/*.tar.xz`), one for each format.

Each takes the unpacked folder, reads it with today's readers, and returns plain data. `ed13726/contents.json` has what
commit ed13726 itself read there. The archives and the contents never change; `made_by.py` in the archive wrote them.
Readers use commands where they can, since Python names may change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.demos.dataset import load_dataset
from navi_core.demos.demonstration import load_demonstration
from navi_core.demos.pairs import read_pairs
from navi_core.evaluate.result import EvalResult
from navi_core.models import load_checkpoint, load_exported, load_policy
from navi_core.scenes import load_gmdag
from navi_core.service.explorer.flight_journal import recover_flights
from navi_core.service.learning.experience_record import recover_journals
from navi_core.service.recordings import Recording
from navi_core.world import Field


def navi(*words: str) -> Any:
    """Run a command with `--json` and return its document."""
    done = CliRunner().invoke(build_app(), [*words, "--json"])
    assert done.exit_code == 0, (words, done.output, done.exception)
    return json.loads(done.stdout)


def digest(array: Any) -> str:
    """Return type, shape and content of an array as text."""
    array = np.ascontiguousarray(array)
    return f"{array.dtype} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def checkpoint(folder: Path) -> Any:
    """Every plain field of a version 3 checkpoint, and the policy that it holds."""
    found = load_checkpoint(folder / "policy.pt")
    names = ("version", "run_id", "step_id", "episode_count", "reward_ema", "wall_time_hours", "parent_checkpoint",
             "training_source", "temporal_core", "encoder_backend", "corpus_summary", "created_at", "decision_hz",
             "scene_hashes", "code_revision", "weights_hash", "config")  # fmt: skip
    fields = {name: getattr(found, name) for name in names}
    policy, _ = load_policy(folder / "policy.pt")
    weights = {name: digest(weight.numpy()) for name, weight in policy.state_dict().items()}
    return fields | {"weights": weights, "rng": sorted(found.rng)}


def registry(folder: Path) -> Any:
    """Versions, aliases, lineage and the history of an alias."""
    rows = navi("models", "list")
    lineage = [row["version"] for row in navi("models", "lineage", "v002")]
    return {"rows": rows, "lineage": lineage}


def _scene(file: Path) -> tuple[Any, torch.Tensor]:
    """What a scene says of itself, and the depth of eight level rays in it [m]."""
    scene = load_gmdag(file)
    angles = torch.arange(8) * (torch.pi / 4)
    level = torch.stack([angles.sin(), torch.zeros(8), -angles.cos()], 1)
    hits = Field([scene]).cast_rays(torch.tensor([[-1.0, 1.25, 0.5]]), level, torch.tensor([0]), max_distance=10.0)
    facts = {
        "version": scene.version,
        "resolution": scene.resolution,
        "voxel_size": float(scene.voxel_size),
        "bounds": np.asarray(scene.bounds).tolist(),
    }
    return facts, hits.depth[0]


def scene_v1(folder: Path) -> Any:
    """A `.gmdag` of version 1; its rays end within 1.5 voxels of the surface."""
    facts, depth = _scene(folder / "room_v1.gmdag")
    exact = _scene(folder / "room_v2.gmdag")[1]
    return facts | {"rays agree": bool(((depth - exact).abs() <= 1.5 * facts["voxel_size"]).all())}


def scene_v2(folder: Path) -> Any:
    """A `.gmdag` of version 2: triangles, names and hashes, too."""
    scene = load_gmdag(folder / "room_v2.gmdag")
    facts, depth = _scene(folder / "room_v2.gmdag")
    names = {str(number): name for number, name in sorted(scene.semantic_names.items())}
    more = {"names": names, "source_hash": scene.source_hash, "content_hash": scene.content_hash()}
    return facts | more | {"depth": [round(ray, 2) for ray in depth.tolist()]}


def compiled_scene(folder: Path) -> Any:
    """A home's compiled scene is reused: same file, same bytes."""
    before = {file.name: digest(np.frombuffer(file.read_bytes(), np.uint8)) for file in _gmdags(folder)}
    navi("scenes", "compile", str(folder / "room.obj"), "--resolution", "32")
    after = {file.name: digest(np.frombuffer(file.read_bytes(), np.uint8)) for file in _gmdags(folder)}
    return {"before": before, "after": after}


def _gmdags(folder: Path) -> list[Path]:
    return sorted((folder / "home" / "scenes").glob("*.gmdag"))


def demonstration(folder: Path) -> Any:
    """One `.npz`."""
    demo = load_demonstration(folder / "demos" / "room-00000.npz")
    arrays = {name: digest(getattr(demo, name)) for name in ("observations", "actions", "episode_starts")}
    names = ("scene", "decision_hz", "limits", "max_distance", "pilot", "scene_hash", "source_hash", "vocabulary")
    return arrays | {name: getattr(demo, name) for name in names} | {"content_hash": demo.content_hash()}


def dataset(folder: Path) -> Any:
    """An indexed folder of demonstrations."""
    data = load_dataset([folder / "demos"])
    arrays = {name: digest(getattr(data, name)) for name in ("depth", "semantic", "valid", "actions")}
    episodes = [[episode.start, episode.stop, episode.file, episode.scene] for episode in data.episodes]
    printed = navi("demos", "inspect", str(folder / "demos"))
    return arrays | {"episodes": episodes, "content_hash": data.content_hash, "inspected": printed}


def pairs(folder: Path) -> Any:
    """Preference pairs, JSONL."""
    found, content = read_pairs(folder / "pairs.jsonl")
    arrays = {name: digest(getattr(found, name).numpy()) for name in ("observations", "actions", "lengths", "scores")}
    return arrays | {"facts": found.metadata, "hash": content}


def recordings(folder: Path) -> Any:
    """Recorded sessions of both formats, message by message."""
    found = {}
    for name in ("session1.navi", "session2.navi"):
        with Recording(folder / name) as recording:
            messages = [
                [when, type(message).__name__, _plain(message.to_map())] for when, message in recording.messages()
            ]
        found[name] = {"messages": messages, "episodes": navi("replay", str(folder / name), "--list")["episodes"]}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return digest(value) if isinstance(value, np.ndarray) else value


def flight_journal(folder: Path) -> Any:
    """The flight of an explorer that was killed."""
    recovered: list[Any] = []
    recover_flights(folder / "flown", recovered.append)
    (demo,) = recovered
    names = ("scene", "decision_hz", "limits", "recording_date", "max_distance", "pilot", "vocabulary")
    arrays = {name: digest(getattr(demo, name)) for name in ("observations", "actions", "episode_starts")}
    return arrays | {name: getattr(demo, name) for name in names}


def warehouse(folder: Path) -> Any:
    """Database, archive, segments and the experiences of a killed service: rows of each table, also when rebuilt."""
    outbox = folder / "home" / "outbox"
    recovered = recover_journals(outbox / "journals", outbox)
    status = navi("warehouse", "status")
    experiences = "select number, session_id, x, z, action, effective_reward from service_experiences order by number"
    runs = "select run_id, algorithm, encoder, core, status, config_hash, reward_ema, step from runs order by run_id"
    names = "('reward_ema', 'td_mean')"
    values = f"select name, count(*) n, sum(value) s from metrics where name in {names} group by 1 order by 1"
    return {
        "recovered": recovered,
        "rows": status["rows"],
        "quarantined": status["quarantined"],
        "experiences": navi("query", experiences),
        "runs": navi("query", runs),
        "metrics": navi("query", values),
        "leaderboard": navi("query", "select subject, episodes, c_vis_auc_percent from leaderboard order by subject"),
        "rebuilt": navi("query", "select count(*) n from metrics", "--rebuild"),
        "rows_rebuilt": navi("warehouse", "status")["rows"],
    }


def evaluation(folder: Path) -> Any:
    """A result of `navi evaluate --out`, and a piece of an evaluation in pieces."""
    found = {}
    for name in ("evaluation.json", "pieces/random/room.json"):
        result = EvalResult.load(folder / name)
        found[name] = {
            "subject": result.subject,
            "episodes": result.episodes,
            "summary": result.summary,
            "config": {key: getattr(result.config, key) for key in ("starts", "max_steps", "view_radius")},
        }
    return found


def policy_flies(folder: Path) -> Any:
    """A version of the registry is evaluated in a scene of the home."""
    words = ("--scene", str(folder / "room.obj"), "--resolution", "32", "--starts", "1", "--steps", "5", "--no-record")
    row = navi("evaluate", "v001", *words)["episodes"][0]
    return {name: row[name] for name in ("subject", "scene", "scene_hash", "steps", "collisions")}


def exported_onnx(folder: Path) -> Any:
    """The description within an ONNX program, and that it acts."""
    program = load_exported(folder / "policy.onnx")
    state = program.initial_state()
    obs, aux, reset = torch.full((1, 3, 16, 8), 0.25), torch.zeros(1, 3), torch.ones(1, dtype=torch.bool)
    acted = program.act(obs, aux, reset, state)
    metadata = {name: value for name, value in program.metadata.items() if name != "torch"}
    return {"metadata": metadata, "action": [round(value, 3) for value in acted[0][0].tolist()]}


def exported_weights(folder: Path) -> Any:
    """Weights in safetensors and what is written beside them."""
    from safetensors import safe_open

    with safe_open(folder / "policy.safetensors", "pt") as file:
        return {
            "metadata": file.metadata(),
            "weights": {n: digest(file.get_tensor(n).numpy()) for n in sorted(file.keys())},
        }


def runs(folder: Path) -> Any:
    """Folders of runs."""
    rows = navi("runs", "list")
    kept = ("name", "created_at", "size", "replays", "in_use")
    return sorted(([row[name] for name in kept] for row in rows), key=str)


def _goes_on(folder: Path, learner: str) -> Any:
    """The same command goes on from the checkpoint of a stopped run."""
    words = ("--task", "cart_pole", "--config", str(folder / "small.json"), "--steps", "256")
    done = navi("train", learner, *words)
    return {name: done[name] for name in ("run_id", "resumed_from", "steps", "updates", "reason", "config_hash")} | {
        "metrics": sorted(done["metrics"]),
        "replay_size": done["metrics"].get("replay_size"),
    }


def run_of_ppo(folder: Path) -> Any:
    """A stopped run of PPO goes on."""
    return _goes_on(folder, "ppo")


def run_of_dqn(folder: Path) -> Any:
    """A stopped run of DQN goes on, with the replay beside its checkpoint."""
    return _goes_on(folder, "dqn")


def study(folder: Path) -> Any:
    """A study's journal."""
    shown, best = navi("study", "show", "quick"), navi("study", "best", "quick")
    kept = ("study", "learner", "objectives", "directions", "sampler", "search_space", "status", "trials", "completed",
            "best_trial", "best_values", "best_params", "started_at", "ended_at")  # fmt: skip
    return {name: shown[name] for name in kept} | {"best": {name: best[name] for name in ("run_id", "step", "value")}}


READERS: dict[str, Callable[[Path], Any]] = {
    read.__name__: read
    for read in (checkpoint, registry, scene_v1, scene_v2, compiled_scene, demonstration, dataset, pairs, recordings,
                 flight_journal, warehouse, evaluation, policy_flies, exported_onnx, exported_weights, runs, run_of_ppo,
                 run_of_dqn, study)
}  # fmt: skip
"""Reader of each format."""


def content(name: str, folder: Path) -> Any:
    """Return what a reader finds, as JSON has it and without the folder's own path; NAVI_HOME is its home."""
    return json.loads(json.dumps(READERS[name](folder)).replace(str(folder), ""))
