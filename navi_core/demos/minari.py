"""Import and export of Minari datasets (HDF5), streamed one episode at a time.

A Minari episode holds one observation more than actions. Export repeats the last observation, import drops it. Fields
without a place in Minari (rate, limits, scene, vocabulary) are stored as attributes `navi_*` of each episode.

Reading needs h5py alone. Links are refused. Sizes are checked before reading: an array must have been written in full,
and all arrays together must not exceed what deflate can pack into the file.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from navi_core.demos.archive import require_memory
from navi_core.demos.demonstration import MAX_BYTES, TEXT_BYTES, Demonstration, Facts
from navi_core.errors import ConfigError, DemoError, install_command

if TYPE_CHECKING:
    import h5py

_T = TypeVar("_T")
_Node = TypeVar("_Node", "h5py.Group", "h5py.Dataset")
_FILE = Path("data") / "main_data.hdf5"
_EPISODE = re.compile(r"episode_(\d{1,18})")
_DEFLATE = 1032
"""How often deflate can pack the bytes of one file."""
_MAX_CHUNK = 64 * 2**20
"""Largest chunk [B] of a smaller array: a chunk is always unpacked whole."""
_ATTRIBUTES = {
    f"navi_{name}"
    for name in (
        "scene",
        "decision_hz",
        "limits",
        "recording_date",
        "max_distance",
        "pilot",
        "scene_hash",
        "source_hash",
        "vocabulary",
    )
}
_NEEDED = ("scene", "decision_hz", "limits", "recording_date")


def minari_file(path: Path) -> Path | None:
    """Locate the HDF5 file of a Minari dataset (its folder or the file itself); None if there is none."""
    if path.is_file() and path.suffix in (".hdf5", ".h5"):
        return path
    return path / _FILE if (path / _FILE).is_file() else None


def export_minari(folder: Path, demos: Iterable[Demonstration], *, dataset_id: str) -> int:
    """Export demonstrations as a new Minari dataset, one Minari episode per episode.

    `minari.MinariDataset(folder / "data")` opens it.

    Args:
        folder: The dataset's folder; must not exist.
        demos: Recordings of one resolution, consumed one by one.
        dataset_id: Minari's name of the dataset, such as `navi/apartments-v0`.

    Returns:
        Episodes written.

    Raises:
        ConfigError: The extra `minari` is not installed.
        DemoError: Nothing to export, the folder exists, or files do not fit each other.
    """
    try:
        import gymnasium
        import minari
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise _missing(error) from None
    if folder.exists():
        raise DemoError("exists already; choose another folder", path=folder)
    demos = iter(demos)
    first = next(demos, None)
    if first is None:
        raise DemoError("nothing to export", path=folder)
    shape = first.observations.shape[1:]
    high = np.broadcast_to(np.array([1.0, 65_535.0, 1.0], np.float32)[:, None, None], shape)
    observation_space = gymnasium.spaces.Box(np.zeros(shape, np.float32), high.copy(), dtype=np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    unfinished = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        unfinished / "data", observation_space=observation_space, action_space=action_space, data_format="hdf5"
    )
    attributes: list[dict[str, Any]] = []
    storage.update_episodes(_buffers(itertools.chain([first], demos), shape, attributes))
    storage.update_episode_metadata(attributes, range(len(attributes)))
    storage.update_metadata(
        {
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            "description": "Flights recorded by Navi",
        }
        | _environment(first, attributes)
    )
    # A killed export leaves a hidden folder, never half a dataset.
    unfinished.rename(folder)
    return len(attributes)


def _buffers(demos: Iterable[Demonstration], shape: tuple[int, ...], attributes: list[dict[str, Any]]) -> Iterator[Any]:
    """Yield every episode as a Minari buffer; fields that Minari lacks are appended to `attributes`."""
    from minari.data_collector import EpisodeBuffer

    for demo in demos:
        if demo.observations.shape[1:] != shape:
            raise DemoError(f"{demo.observations.shape[1:]}, others {shape}", path=demo.source, field="observations")
        for begin, stop in demo.episodes():
            obs, length = demo.observations[begin:stop], stop - begin
            number = len(attributes)
            attributes.append(_attributes(demo))
            yield EpisodeBuffer(
                id=number,
                observations=[*list(obs), obs[-1]],
                actions=list(demo.actions[begin:stop]),
                rewards=[0.0] * length,
                terminations=[False] * length,
                truncations=[False] * (length - 1) + [True],
                infos=_infos(demo, begin, stop),
            )


def import_minari(path: Path) -> Iterator[Demonstration]:
    """Import the episodes of a Minari dataset with Navi's observations and actions, one by one.

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
        names = _names(file, data)
        announced = sum(_readable(_announced, file, name, data) for name in names)
        if announced > _DEFLATE * file.stat().st_size:
            raise DemoError(f"{announced:,} bytes of episodes in {file.stat().st_size:,} bytes", path=file)
        for name in names:
            yield _readable(_episode, file, name, data)


def _names(file: Path, data: h5py.Group) -> list[str]:
    """Return the HDF5 group names of the episodes in numeric order; leading zeros are allowed."""
    found: dict[int, str] = {}
    for name in data:
        match = _EPISODE.fullmatch(name)
        if match is not None and found.setdefault(int(match.group(1)), name) != name:
            raise DemoError(f"the same number as {found[int(match.group(1))]}", path=file, field=name)
    if not found:
        raise DemoError("no episode", path=file)
    return [found[number] for number in sorted(found)]


def _readable(read: Callable[[Path, str, h5py.Group], _T], file: Path, name: str, data: h5py.Group) -> _T:
    """Call `read` and convert h5py's errors into a `DemoError` that names the file."""
    try:
        return read(file, name, data)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DemoError(f"cannot be read ({error})", path=file, field=name) from None


def _node(file: Path, data: h5py.Group, path: str, kind: type[_Node]) -> _Node:
    """Return an HDF5 group or dataset; links on the path are refused, since they could lead out of the file."""
    import h5py

    node = data
    for n, part in enumerate(path.split("/"), start=1):
        here = "/".join(path.split("/")[:n])
        # `in` on an array would compare the name with every number.
        if not isinstance(node, h5py.Group) or not isinstance(node.get(part, getlink=True), h5py.HardLink):
            raise DemoError("is missing, or a link out of the file", path=file, field=here)
        node = node[part]
    if not isinstance(node, kind):
        raise DemoError(f"is no {kind.__name__.lower()} of HDF5", path=file, field=path)
    return node


def _array(file: Path, data: h5py.Group, path: str) -> h5py.Dataset:
    """Return a float dataset after validating dtype, size, chunks and completeness."""
    import h5py

    array = _node(file, data, path, h5py.Dataset)
    if array.shape is None or array.dtype.kind != "f" or array.is_virtual or array.external:
        raise DemoError("no plain array of numbers", path=file, field=path)
    if array.nbytes > MAX_BYTES:
        raise DemoError(f"larger than the {MAX_BYTES:,} bytes allowed", path=file, field=path)
    if array.chunks is None:
        written, expected = array.id.get_storage_size(), array.nbytes
    else:
        if math.prod(array.chunks) * array.dtype.itemsize > max(_MAX_CHUNK, array.nbytes):
            raise DemoError(f"chunks of {array.chunks} in an array of {array.shape}", path=file, field=path)
        written = array.id.get_num_chunks()
        expected = math.prod(-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True))
    if written < expected:
        # A killed writer leaves unwritten parts, which would read as zeros.
        raise DemoError(f"was never written in full ({written:,} of {expected:,} parts)", path=file, field=path)
    return array


def _arrays(file: Path, name: str, data: h5py.Group) -> tuple[h5py.Dataset, h5py.Dataset, h5py.Dataset | None]:
    """Return one episode's HDF5 datasets: observations, actions, executed actions (None where equal to the actions)."""
    import h5py

    group = _node(file, data, name, h5py.Group)
    flown = None
    if "infos" in group and "flown" in _node(file, data, f"{name}/infos", h5py.Group):
        flown = _array(file, data, f"{name}/infos/flown")
    return _array(file, data, f"{name}/observations"), _array(file, data, f"{name}/actions"), flown


def _announced(file: Path, name: str, data: h5py.Group) -> int:
    return sum(array.nbytes for array in _arrays(file, name, data) if array is not None)


def _episode(file: Path, name: str, data: h5py.Group) -> Demonstration:
    obs, actions, flown = _arrays(file, name, data)
    if obs.ndim != 4 or obs.shape[1] != 3 or actions.ndim != 2 or obs.shape[0] != actions.shape[0] + 1:
        raise DemoError(
            f"observations {obs.shape} and actions {actions.shape}; expected (T+1, 3, Az, El) and (T, 4)",
            path=file,
            field=name,
        )
    if flown is not None and flown.shape != (actions.shape[0] + 1, 4):
        raise DemoError(f"{flown.shape}; expected {(actions.shape[0] + 1, 4)}", path=file, field=f"{name}/infos/flown")
    require_memory(obs.nbytes, file, "record shorter episodes")
    facts = _facts(file, name, data[name].attrs)
    missing = [f"navi_{key}" for key in _NEEDED if key not in facts.values]
    if missing:
        raise DemoError(
            f"lacks the attributes {', '.join(missing)}; an external dataset needs them on each episode",
            path=file,
            field=name,
        )
    steps = actions.shape[0]
    starts = np.zeros(steps, bool)
    starts[:1] = True
    return Demonstration(
        observations=obs[:steps].astype(np.float32, copy=False),
        actions=actions[:].astype(np.float32, copy=False),
        episode_starts=starts,
        flown=None if flown is None else flown[1:].astype(np.float32, copy=False),
        source=file,
        **facts.fields(),
    )


def _facts(file: Path, name: str, attributes: h5py.AttributeManager) -> Facts:
    """Read an episode's `navi_*` attributes; shape and dtype are validated before any is read."""

    def refuse(key: str, reason: str) -> NoReturn:
        raise DemoError(f"navi_{key} is {reason}", path=file, field=name)

    values = {}
    for key in _ATTRIBUTES & set(attributes):
        short = key.removeprefix("navi_")
        held = attributes.get_id(key)
        if held.shape not in ((), (1,), (4,)) or held.dtype.kind not in "SOfiu":
            refuse(short, f"{held.dtype} {held.shape}; expected a text, a number or four")
        value = attributes[key]
        if isinstance(value, str | bytes) and len(value) > TEXT_BYTES:
            refuse(short, f"{value[:40]!r} …; expected a text of at most {TEXT_BYTES:,} characters")
        values[short] = np.array(value.decode() if isinstance(value, bytes) else value)
    return Facts(values, refuse)


def _infos(demo: Demonstration, begin: int, stop: int) -> dict[str, Any] | None:
    """Return the executed actions as Minari `infos`, which have one entry more than decisions."""
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


def _environment(demo: Demonstration, attributes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the specification of the recorded environment, which `recover_environment()` makes.

    It is empty if a scene came from a file, for scenes are not part of a dataset.
    """
    from gymnasium.envs.registration import EnvSpec

    from navi_core.scenes import FAMILIES

    names = [re.fullmatch(r"([a-z]+)_(\d{4,})", one["navi_scene"]) for one in attributes]
    scenes = sorted({f"{name[1]}:{int(name[2])}" for name in names if name and name[1] in FAMILIES})
    if not all(name and name[1] in FAMILIES for name in names):
        return {}
    azimuth, elevation = demo.observations.shape[2:]
    *speeds, yaw = demo.limits
    config = {
        "azimuth_bins": azimuth,
        "elevation_bins": elevation,
        "max_distance": demo.max_distance,
        "dynamics": {"max_speed": speeds, "max_yaw_rate": yaw},
    }
    place = "navi_core.world.gym_adapter:ExploreEnv"
    spec = EnvSpec("Navi/Explore-v0", entry_point=place, kwargs={"config": config, "scenes": scenes})
    return {"env_spec": spec.to_json()}


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"Minari datasets need the extra minari ({error}); {install_command('minari')}")
