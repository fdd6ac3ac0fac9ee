"""Minari datasets (HDF5), in and out.

A Minari episode holds one observation more than actions. A recording sees nothing after its last decision, so the last
observation is repeated on the way out and left away on the way in. What Minari has no place for (rate, limits, scene,
vocabulary) lies in attributes `navi_*` of each episode. Reading needs h5py alone; sizes are checked before anything is
read, and links that lead out of the file are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from navi_core.demos.demonstration import MAX_BYTES, Demonstration
from navi_core.errors import ConfigError, DemoError

__all__ = ["export_minari", "import_minari", "minari_file"]

_FILE = Path("data") / "main_data.hdf5"
_EPISODE = re.compile(r"episode_(\d{1,18})")
_NEEDED = ("navi_scene", "navi_decision_hz", "navi_limits", "navi_recording_date")


def minari_file(path: Path) -> Path | None:
    """Return the HDF5 file of a Minari dataset that `path` names: its folder or the file itself; None if it is none."""
    if path.is_file() and path.suffix in (".hdf5", ".h5"):
        return path
    return path / _FILE if (path / _FILE).is_file() else None


def export_minari(folder: Path, demos: Sequence[Demonstration], *, dataset_id: str) -> Path:
    """Write demonstrations as a new Minari dataset, one Minari episode per episode.

    Args:
        folder: The dataset's folder; must not exist.
        demos: Recordings of one resolution.
        dataset_id: Minari's name of it, as in `navi/apartments-v0`.

    Returns:
        `folder`, which `minari.MinariDataset(folder / "data")` opens.

    Raises:
        ConfigError: The extra `minari` is not installed.
        DemoError: Nothing to export, the folder exists, or files do not fit each other.
    """
    try:
        import gymnasium
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise _missing(error) from None
    if not demos:
        raise DemoError("nothing to export", path=folder)
    if folder.exists():
        raise DemoError("exists already; choose another folder", path=folder)
    shape = demos[0].observations.shape[1:]
    high = np.broadcast_to(np.array([1.0, 65_535.0, 1.0], np.float32)[:, None, None], shape)
    observation_space = gymnasium.spaces.Box(np.zeros(shape, np.float32), high.copy(), dtype=np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    unfinished = folder.with_name(f".{folder.name}.part")
    _discard(unfinished)
    (unfinished / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        unfinished / "data", observation_space=observation_space, action_space=action_space, data_format="hdf5"
    )
    count = steps = 0
    for demo in demos:
        if demo.observations.shape[1:] != shape:
            raise DemoError(f"{demo.observations.shape[1:]}, others {shape}", path=demo.source, field="observations")
        for begin, stop in demo.episodes():
            obs, length = demo.observations[begin:stop], stop - begin
            storage.update_episodes(
                [
                    EpisodeBuffer(
                        id=count,
                        observations=[*list(obs), obs[-1]],
                        actions=list(demo.actions[begin:stop]),
                        rewards=[0.0] * length,
                        terminations=[False] * length,
                        truncations=[False] * (length - 1) + [True],
                        infos=_infos(demo, begin, stop),
                    )
                ]
            )
            storage.update_episode_metadata([_attributes(demo)], [count])
            count, steps = count + 1, steps + length
    storage.update_metadata(
        {"dataset_id": dataset_id, "minari_version": minari.__version__, "description": "Flights recorded by Navi"}
    )
    # A killed export leaves a hidden folder, never half a dataset.
    unfinished.rename(folder)
    return folder


def import_minari(path: Path) -> Iterator[Demonstration]:
    """Read the episodes of a Minari dataset that holds Navi's observations and actions.

    Args:
        path: The dataset's folder, or its HDF5 file.

    Yields:
        One demonstration per episode.

    Raises:
        ConfigError: The extra `minari` is not installed.
        DemoError: No such dataset, or an episode breaks the format; the field is named.
    """
    file = minari_file(path)
    if file is None:
        raise DemoError("no Minari dataset (data/main_data.hdf5 is missing)", path=path)
    try:
        import h5py
    except ImportError as error:
        raise _missing(error) from None
    try:
        opened = h5py.File(file, "r")
    except OSError as error:
        raise DemoError(f"not an HDF5 file, or cut short ({error})", path=file) from None
    with opened as data:
        numbers = sorted(int(m.group(1)) for name in data if (m := _EPISODE.fullmatch(name)))
        if not numbers:
            raise DemoError("no episode", path=file)
        for number in numbers:
            name = f"episode_{number}"
            try:
                yield _episode(file, name, data)
            except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
                raise DemoError(f"cannot be read ({error})", path=file, field=name) from None


def _episode(file: Path, name: str, data: Any) -> Demonstration:
    import h5py

    arrays: dict[str, Any] = {}
    group = data.get(name, {})
    told = ("infos/flown",) if "infos" in group and "flown" in group["infos"] else ()
    for key in ("observations", "actions", *told):
        place = f"{name}/{key}"
        for part in (name, place):
            if not isinstance(data.get(part, getlink=True), h5py.HardLink):
                raise DemoError("is missing, or a link out of the file", path=file, field=part)
        array = data[place]
        if not isinstance(array, h5py.Dataset) or array.dtype.kind != "f" or array.is_virtual or array.external:
            raise DemoError("no plain array of numbers", path=file, field=place)
        if array.size * array.dtype.itemsize > MAX_BYTES:
            raise DemoError(f"larger than the {MAX_BYTES:,} bytes allowed", path=file, field=place)
        arrays[key] = array
    obs, actions = arrays["observations"], arrays["actions"]
    if obs.ndim != 4 or obs.shape[1] != 3 or actions.ndim != 2 or obs.shape[0] != actions.shape[0] + 1:
        raise DemoError(
            f"observations {obs.shape} and actions {actions.shape}; expected (T+1, 3, Az, El) and (T, 4)",
            path=file,
            field=name,
        )
    flown = arrays.get("infos/flown")
    if flown is not None and flown.shape != (actions.shape[0] + 1, 4):
        raise DemoError(f"{flown.shape}; expected {(actions.shape[0] + 1, 4)}", path=file, field=f"{name}/infos/flown")
    attributes = data[name].attrs
    missing = [key for key in _NEEDED if key not in attributes]
    if missing:
        raise DemoError(
            f"lacks the attributes {', '.join(missing)}; a dataset from elsewhere needs them on each episode",
            path=file,
            field=name,
        )
    steps = actions.shape[0]
    starts = np.zeros(steps, bool)
    starts[:1] = True
    vocabulary = json.loads(str(attributes.get("navi_vocabulary", "{}")))
    if not isinstance(vocabulary, dict):
        raise DemoError("navi_vocabulary is no JSON object", path=file, field=name)
    return Demonstration(
        observations=obs[:steps].astype(np.float32),
        actions=actions[:].astype(np.float32),
        episode_starts=starts,
        scene=str(attributes["navi_scene"]),
        decision_hz=float(attributes["navi_decision_hz"]),
        limits=tuple(float(v) for v in np.ravel(attributes["navi_limits"])),  # type: ignore[arg-type]
        recording_date=str(attributes["navi_recording_date"]),
        max_distance=float(attributes.get("navi_max_distance", 100.0)),
        pilot=str(attributes.get("navi_pilot", "")),
        scene_hash=str(attributes.get("navi_scene_hash", "")),
        source_hash=str(attributes.get("navi_source_hash", "")),
        vocabulary=vocabulary,
        flown=None if flown is None else flown[1:].astype(np.float32),
        source=file,
    )


def _infos(demo: Demonstration, begin: int, stop: int) -> dict[str, Any] | None:
    """What came of each decision, one entry more than decisions as Minari counts: what was flown instead of it."""
    if demo.flown is None:
        return None
    return {"flown": np.concatenate([np.zeros((1, 4), np.float32), demo.flown[begin:stop]])}


def _attributes(demo: Demonstration) -> dict[str, Any]:
    return {
        "navi_scene": demo.scene,
        "navi_decision_hz": demo.decision_hz,
        "navi_limits": np.array(demo.limits),
        "navi_recording_date": demo.recording_date,
        "navi_max_distance": demo.max_distance,
        "navi_pilot": demo.pilot,
        "navi_scene_hash": demo.scene_hash,
        "navi_source_hash": demo.source_hash,
        "navi_vocabulary": json.dumps(demo.vocabulary, sort_keys=True),
    }


def _discard(folder: Path) -> None:
    import shutil

    if folder.exists():
        shutil.rmtree(folder)


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"Minari datasets need the extra minari ({error}); pip install 'navi[minari]'")
