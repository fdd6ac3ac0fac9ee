"""Parsers that are fuzzed: a valid file of each format, its reader, and the modules whose coverage is reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_READ = "navi_core.scenes.readers"


@dataclass(frozen=True)
class Target:
    """Parser of one format.

    Attributes:
        seeds: Returns valid inputs; it writes to the folder that it is given.
        read: Parses a file. A `NaviError` is a refusal, any other exception a fault.
        modules: Modules of the parser.
        suffix: Suffix of its files.
    """

    seeds: Callable[[Path], Sequence[bytes]]
    read: Callable[[Path], object]
    modules: tuple[str, ...]
    suffix: str


def _mesh(*names: str) -> Callable[[Path], Sequence[bytes]]:
    def seeds(folder: Path) -> list[bytes]:
        from tests.scenes.readers.fuzz_meshes import seeds

        victims = {victim.relative_to(folder).as_posix(): victim for _, victim in seeds(folder)}
        return [victims[name].read_bytes() for name in names]

    return seeds


def _read_mesh(path: Path) -> None:
    from navi_core.errors import SceneError
    from navi_core.scenes import read_mesh
    from navi_core.scenes.readers.mesh_file import read_facts

    with suppress(SceneError):
        read_facts(path)
    read_mesh(path)


def _gmdag(_: Path) -> Sequence[bytes]:
    from tests.scenes.gmdag.fuzz_gmdag import seed_files

    return seed_files()


def _read_gmdag(path: Path) -> None:
    from navi_core.scenes.gmdag.file import read_gmdag
    from tests.scenes.gmdag.fuzz_gmdag import sealed

    data = path.read_bytes()
    # The checksum of version 2 would refuse every mutation before the parser sees it.
    read_gmdag(sealed(data) if data[4:6] == b"\x02\x00" and len(data) >= 64 else data, path)


def _demonstration(folder: Path) -> Sequence[bytes]:
    from navi_core.demos.demonstration import save_demonstration
    from tests.demos.conftest import make_demo

    save_demonstration(folder / "a.npz", make_demo(3, bins=(4, 2)))
    return [(folder / "a.npz").read_bytes()]


def _read_demonstration(path: Path) -> None:
    from navi_core.demos.demonstration import load_demonstration

    load_demonstration(path)


def _checkpoint(folder: Path) -> Sequence[bytes]:
    from tests.models.conftest import make_checkpoint

    return [make_checkpoint.__wrapped__(folder)("a.pt").read_bytes()]


def _read_checkpoint(path: Path) -> None:
    from navi_core.models import load_checkpoint

    load_checkpoint(path).train_config()


def _journal(_: Path) -> Sequence[bytes]:
    from navi_core.service.recordings import FORMATS

    return [
        form.magic + b"".join(form.frame(b"topic", bytes(range(n)) * 40, 1.0 + n, pack=n > 2) for n in range(1, 5))
        for form in FORMATS
    ]


def _read_journal(path: Path) -> None:
    from navi_core.record.journal import Journal
    from navi_core.service.recordings import FORMATS

    with Journal(path, FORMATS, kind="recording", max_bytes=2**20) as journal:
        for frame in journal.frames:
            journal.read(frame)


def _frames(_: Path) -> Sequence[bytes]:
    from navi_core.service.wire.codec import encode
    from tests.service.wire_samples import all_messages

    return [b"".join(len(frame).to_bytes(4, "little") + frame for frame in encode(m)) for m in all_messages()]


def _read_frames(path: Path) -> None:
    from navi_core.service.wire.codec import decode

    data, frames = path.read_bytes(), list[bytes]()
    while len(data) >= 4 and len(frames) < 8:
        size = min(int.from_bytes(data[:4], "little"), len(data) - 4)
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    decode(frames)


def _preset(_: Path) -> Sequence[bytes]:
    from navi_core import presets

    folder = Path(presets.__file__).parent
    return [(folder / f"{name}.yaml").read_bytes() for name in ("quick", "demo")]


def _read_preset(path: Path) -> None:
    from navi_core.config import TrainConfig, parse_config
    from navi_core.presets import merge, preset_values, read_config_file

    parse_config(TrainConfig, merge(preset_values("quick"), read_config_file(path)))


_GLTF = (f"{_READ}.gltf", f"{_READ}.gltf_check")
TARGETS = {
    "gmdag": Target(_gmdag, _read_gmdag, tuple(f"navi_core.scenes.gmdag.{m}" for m in ("file", "version1")), ".gmdag"),
    "glb": Target(_mesh("a.glb"), _read_mesh, _GLTF, ".glb"),
    "gltf": Target(_mesh("text.gltf"), _read_mesh, _GLTF, ".gltf"),
    "ply": Target(
        _mesh("ascii.ply", "binary_big_endian.ply", "colors.ply", "box.ply"), _read_mesh, (f"{_READ}.ply",), ".ply"
    ),
    "obj": Target(_mesh("box.obj"), _read_mesh, (f"{_READ}.obj_stl",), ".obj"),
    "stl": Target(_mesh("box.stl", "text.stl"), _read_mesh, (f"{_READ}.obj_stl",), ".stl"),
    "collada": Target(_mesh("box.dae"), _read_mesh, (f"{_READ}.collada", f"{_READ}.xml_files"), ".dae"),
    "world": Target(_mesh("shop/worlds/shop.world"), _read_mesh, (f"{_READ}.gazebo.world",), ".world"),
    "npz": Target(
        _demonstration, _read_demonstration, ("navi_core.demos.archive", "navi_core.demos.demonstration"), ".npz"
    ),
    "checkpoint": Target(_checkpoint, _read_checkpoint, ("navi_core.models.checkpoint",), ".pt"),
    "journal": Target(_journal, _read_journal, ("navi_core.record.journal",), ".rec"),
    "frames": Target(
        _frames, _read_frames, ("navi_core.service.wire.codec", "navi_core.service.wire.messages"), ".bin"
    ),
    "preset": Target(_preset, _read_preset, ("navi_core.presets", "navi_core.config.base"), ".yaml"),
}
"""Format → its parser."""


class OutsideError(BaseException):
    """A parser opened a file outside of the folder of its input; no parser can take it for a broken file."""


def watch_opens(folder: Path) -> Callable[[bool], None]:
    """Install an audit hook that refuses opens outside of a folder while it is switched on; returns the switch."""
    places = (folder, sys.prefix, sys.base_prefix, Path(__file__).parents[2], "/proc", "/sys")
    allowed = tuple(os.path.realpath(place) + os.sep for place in places)
    state = {"on": False}

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and state["on"] and isinstance(arguments[0], str):
            path = os.path.realpath(arguments[0])
            if not path.startswith(allowed):
                raise OutsideError(path)

    sys.addaudithook(hook)
    return lambda on: state.update(on=on)
