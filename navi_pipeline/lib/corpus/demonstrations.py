"""Demonstration datasets of a profile: a scripted teacher's flights, people's recordings, and both combined."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from navi_core.config import ExpertConfig, config_hash, parse_config
from navi_core.errors import DemoError, RunError
from navi_core.presets import load_preset
from navi_core.record import navi_home
from navi_core.record.home import recordings_folder
from navi_pipeline.lib.corpus.scenes import read_corpus
from navi_pipeline.lib.records import content_key, pipeline_folder, read_document, write_document
from navi_pipeline.lib.training.trainer_client import run_navi

_TAKEN = 2
"""Version of the ingest; raised when the same files give another dataset (2: subfolders are searched)."""
_AXES = ("forward", "vertical", "lateral", "yaw")


def expert_config(profile: str, **settings: object) -> ExpertConfig:
    """Build the scripted teacher's recording configuration with the sensor and drone dynamics of a profile.

    Raises:
        ConfigError: A setting has an impossible value.
    """
    env = load_preset(profile).env
    sensor = {name: getattr(env, name) for name in ("azimuth_bins", "elevation_bins", "max_distance", "dynamics")}
    return parse_config(ExpertConfig, sensor | settings)


def fly_expert(profile: str, config: ExpertConfig, *, scenes: int, on_line: Callable[[str], None]) -> dict[str, Any]:
    """Record a demonstration dataset of the scripted teacher in the first training scenes, or reuse an equal one.

    Args:
        profile: Training profile, whose sensor and drone `config` has.
        config: Settings of the teacher: pilot, episodes, length, noise.
        scenes: Number of scenes.
        on_line: Called with every line of the recording.

    Returns:
        Document: folder, files, episodes, decisions, content_hash, rows by scene, `reused`.

    Raises:
        RunError: The corpus has no training scene, or the recording failed.
    """
    rows = [row for row in read_corpus() if row["split"] == "train"][:scenes]
    if not rows:
        raise RunError("the corpus has no training scene; materialize scene_sources with train above 0")
    key = content_key(config_hash(config), [[row["name"], row["content_hash"]] for row in rows])
    folder = navi_home() / "demos" / f"expert-{profile}-{key}"
    file = _path("expert", profile)
    if file.exists() and (known := read_expert(profile))["key"] == key and Path(known["folder"]).is_dir():
        return known | {"reused": True}
    options = ("episodes", "steps", "seed", "noise", "noise_hold", "azimuth_bins", "elevation_bins")
    arguments = [
        *("demos", "expert", "--json", "--out", str(folder), "--pilot", config.pilot),
        *(part for name in options for part in (f"--{name.replace('_', '-')}", str(getattr(config, name)))),
        *(part for row in rows for part in ("--scene", row["gmdag"])),
    ]
    made = run_navi(arguments, what="recording", on_line=on_line)
    document = {
        "key": key,
        "folder": str(folder),
        "pilot": config.pilot,
        **{name: made[name] for name in ("files", "episodes", "decisions", "content_hash", "resolution")},
        "rows": made["scenes_recorded"],
    }
    write_document(file, document)
    return document | {"reused": False}


_NO_RECORDINGS: dict[str, Any] = {"folder": None, "files": 0, "decisions": 0, "content_hash": None, "rows": []}


def _found_recordings() -> Path | None:
    """Return the folder of people's recordings, None where it is not the user's own choice and absent or empty.

    Raises:
        DemoError: `$NAVI_DEMOS` names nothing that exists.
    """
    folder, chosen = recordings_folder(), bool(os.environ.get("NAVI_DEMOS"))
    if chosen and not folder.exists():
        raise DemoError("does not exist; set NAVI_DEMOS to a folder of recordings, or unset it", path=folder)
    return folder if chosen or (folder.is_dir() and any(folder.iterdir())) else None


def take_recordings() -> dict[str, Any]:
    """Validate people's recordings and ingest the accepted ones into a dataset.

    Returns:
        Document: folder (None where not one recording is good), files, decisions, content_hash, rows by file.

    Raises:
        DemoError: `$NAVI_DEMOS` names nothing that exists.
    """
    source = _found_recordings()
    document = _NO_RECORDINGS
    if source is not None and (known := _path("recorded", _listing(source))).exists():
        document = read_document(known, made_by="recorded_demonstrations")
    elif source is not None:
        # What has not changed since the last ingest is linked from its dataset.
        earlier = read_recorded()["folder"] if _path("recorded").exists() else None
        document = _ingest(source, navi_home() / "demos" / known.stem, earlier and Path(earlier))
        write_document(known, document)
    write_document(_path("recorded"), document)
    return document


def _ingest(source: Path, folder: Path, earlier: Path | None) -> dict[str, Any]:
    from navi_core.demos import ingest, read_index

    # What a killed attempt has left would count as recorded.
    shutil.rmtree(folder, ignore_errors=True)
    taken = ingest(source, folder, earlier=earlier, may_be_empty=True)
    rows = [{"file": row.file, "accepted": row.accepted, "reason": row.reason} for row in taken]
    if not any(row.accepted for row in taken):
        return _NO_RECORDINGS | {"rows": rows}
    index = read_index(folder)
    return {
        "folder": str(folder),
        "files": len(index["files"]),
        "decisions": sum(row["decisions"] for row in index["files"]),
        "content_hash": index["content_hash"],
        "rows": rows,
    }


def gather_demonstrations(profile: str) -> dict[str, Any]:
    """Combine the teacher's flights with the recordings that match the profile's sensor and drone.

    Returns:
        Document: folders, content_hash, decisions, episodes, scenes, rows by source, left_out.

    Raises:
        RecordError: The teacher has not flown, or recordings have not been taken in.
    """
    from navi_core.demos import read_index

    folders = {"recorded": read_recorded()["folder"], "expert": read_expert(profile)["folder"]}
    indexes = {name: read_index(Path(folders[name])) for name in ("expert", "recorded") if folders[name] is not None}
    env = load_preset(profile).env
    wanted = {
        "azimuth_bins": env.azimuth_bins,
        "elevation_bins": env.elevation_bins,
        "max_distance": env.max_distance,
        "decision_hz": env.dynamics.decision_hz,
        "limits": [*env.dynamics.max_speed, env.dynamics.max_yaw_rate],
    }
    differs = {name: [k for k, value in wanted.items() if index[k] != value] for name, index in indexes.items()}
    rows: list[dict[str, Any]] = [
        {
            "source": name,
            "files": len(index["files"]),
            "episodes": sum(row["episodes"] for row in index["files"]),
            "decisions": sum(row["decisions"] for row in index["files"]),
            "resolution": f"{index['azimuth_bins']}x{index['elevation_bins']}",
            "used": not differs[name],
            "differs": ", ".join(differs[name]),
        }
        for name, index in indexes.items()
    ]
    used = [row for row in rows if row["used"]]
    fitting = {folders[row["source"]]: indexes[row["source"]] for row in used}
    document = {
        "folders": list(fitting),
        "content_hash": content_key([index["content_hash"] for index in fitting.values()]),
        "decisions": sum(row["decisions"] for row in used),
        "episodes": sum(row["episodes"] for row in used),
        "scenes": len({row["scene"] for index in fitting.values() for row in index["files"]}),
        "rows": rows,
        "left_out": len(rows) - len(used),
    }
    write_document(_path("demonstrations", profile), document)
    return document


def read_expert(profile: str) -> dict[str, Any]:
    """Load the JSON document of a profile's recorded teacher flights.

    Raises:
        RecordError: The teacher has not flown.
    """
    return read_document(_path("expert", profile), made_by=f"expert_demonstrations, partition {profile},")


def read_recorded() -> dict[str, Any]:
    """Load the JSON document of the ingested recordings.

    Raises:
        RecordError: They have not been taken in.
    """
    return read_document(_path("recorded"), made_by="recorded_demonstrations")


def read_demonstrations(profile: str) -> dict[str, Any]:
    """Load the JSON document of a profile's combined demonstrations.

    Raises:
        RecordError: They have not been gathered.
    """
    return read_document(_path("demonstrations", profile), made_by=f"demonstrations, partition {profile},")


def action_statistics(folders: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any], Any]:
    """Return action statistics per axis, the actions by axis, and the first observation of the datasets.

    Args:
        folders: Datasets.

    Returns:
        Rows (axis, mean, std, share at the limit), actions (N,) by axis, observation (3, Az, El).
    """
    import numpy as np

    from navi_core.demos import load_demonstration, read_index

    files = [Path(folder) / row["file"] for folder in folders for row in read_index(Path(folder))["files"]]
    # One demonstration at a time: observations are large, and kept of none.
    actions = np.concatenate([load_demonstration(file).actions for file in files])
    by_axis = {name: actions[:, n] for n, name in enumerate(_AXES)}
    rows = [
        {
            "axis": name,
            "mean": float(values.mean()),
            "std": float(values.std()),
            "at the limit": float((np.abs(values) >= 1.0).mean()),
        }
        for name, values in by_axis.items()
    ]
    return rows, by_axis, load_demonstration(files[0]).observations[0].copy()


def _listing(source: Path) -> str:
    """Return a hash of a folder's recordings by path, size and modification time, to detect changes."""
    files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    # With how they are taken in: what an older version made of the same files is another dataset.
    return content_key(_TAKEN, [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files])


def _path(what: str, profile: str | None = None) -> Path:
    return pipeline_folder() / "demonstrations" / (f"{what}.json" if profile is None else f"{what}-{profile}.json")
