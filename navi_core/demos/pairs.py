"""Preference pairs for DPO: a JSONL file of winner and loser segments, and their generation from two pilots.

The first line is a header, `{"format": "navi-pairs", "version": 1, "observation": [3, Az, El], "action_axes": 4,
"steps": L, …}`; every other line is one pair, `{"winner": S, "loser": S}`. A segment S is
`{"observations": …, "actions": [[…]], "score": x}` and begins with an episode. Observations are nested lists, or
`{"zlib": base64 of little-endian float16}` in order of time. Nothing is unpickled; every size is checked.
"""

import base64
import binascii
import hashlib
import json
import math
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config import EnvConfig, TrainConfig
from navi_core.demos.identity import MOST_IDS, UNNAMED, id_table
from navi_core.errors import ConfigError, DemoError
from navi_core.pilots import Pose, build_pilot
from navi_core.record import write_durably
from navi_core.world import Field, NavigationEnv
from navi_core.world.occupancy_memory import pose_rows

_MOST_NUMBERS = 2**31
_MOST_STEPS, _MOST_PAIRS = 65_536, 1_000_000
_SIDES = ("winner", "loser")
_MOST_HALF_IDS = 2048
"""Semantic ids up to here are whole numbers in float16."""


@dataclass(frozen=True)
class Pairs:
    """Batch of N preference pairs of flight segments; side 0 is the winner, side 1 the loser.

    Attributes:
        observations: (N, 2, L, …) float16.
        actions: (N, 2, L, A) float32.
        lengths: (N, 2) int64 valid decisions, at most L.
        scores: (N, 2) float64 score of each side.
        metadata: Optional header fields: winner, loser, seed, vocabulary, decision_hz, limits (speeds of action 1),
            max_distance, scenes (hashes of content and sources), …
    """

    observations: Tensor
    actions: Tensor
    lengths: Tensor
    scores: Tensor
    metadata: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def scenes(self) -> list[str]:
        """Return the content and source hashes of the scenes, as far as the file holds them.

        Raises:
            ConfigError: The header's `scenes` is no list of hashes.
        """
        scenes = self.metadata.get("scenes", [])
        if not isinstance(scenes, list) or not all(isinstance(name, str) for name in scenes):
            raise ConfigError("the pairs' scenes are no list of hashes")
        return scenes

    def remapped(self, vocabulary: Mapping[str, int]) -> Self:
        """Remap the semantic ids to another vocabulary; unknown names become the unnamed surface.

        Pairs without a vocabulary, or with the same one, are returned unchanged.

        Args:
            vocabulary: Semantic id by name; observations are (3, Az, El).
        """
        source = self.metadata.get("vocabulary")
        if not source or source == dict(vocabulary):
            return self
        if not isinstance(source, dict) or not all(_count(number, MOST_IDS) for number in source.values()):
            raise ConfigError(f"the pairs' vocabulary is no mapping of names to ids from 1 to {MOST_IDS}")
        held = {name: number for name, number in vocabulary.items() if number <= _MOST_HALF_IDS}
        table = torch.from_numpy(id_table(source, held).astype(np.float32)).to(self.observations.dtype)
        observations = self.observations.clone()
        for pair in observations:
            seen = pair[:, :, 1]
            seen.copy_(table[seen.long().clamp(0, MOST_IDS)])
        return replace(self, observations=observations, metadata=self.metadata | {"vocabulary": dict(vocabulary)})


def make_pairs(
    scenes: Field,
    config: EnvConfig,
    count: int,
    *,
    winner: str = "forward-plus",
    loser: str = "random",
    steps: int = 32,
    rows: int = 32,
    seed: int = 0,
    progress: Callable[[str, float, float], None] | None = None,
) -> Pairs:
    """Generate preference pairs: fly two pilots from the same starts, keep pairs where `winner` has the higher return.

    Args:
        scenes: Scenes to fly in.
        config: Environment, whose reward scores the segments.
        count: Pairs N. Starts at which `loser` has the same or a higher return are skipped as label noise.
        winner: Pilot expected to be better.
        loser: The other pilot.
        steps: Decisions of a segment L; fewer where its episode ends before.
        rows: Flights at a time.
        seed: Seed of the starts and of the pilots' draws.
        progress: Called as progress(label, pairs found, pairs wanted).

    Raises:
        ConfigError: A pilot is unknown, or `winner` hardly ever has the higher return.
    """
    config = config.model_copy(update={"stagger": False, "max_steps": max(config.max_steps, steps + 1)})
    env = NavigationEnv(scenes, rows, config, seed)
    parts: list[list[Tensor]] = [[], [], [], []]
    found, flown_starts, share = 0, 0, 0
    for episode in range(8 * math.ceil(count / rows) + 8):
        flights = (_flight(env, scenes, name, steps, seed, episode, config) for name in (winner, loser))
        both = [torch.stack(sides, dim=1) for sides in zip(*flights, strict=True)]
        scores = both[-1]
        better = torch.nonzero(scores[:, 0] > scores[:, 1]).flatten()
        flown_starts, share = flown_starts + rows, share + len(better)
        for part, sides in zip(parts, both, strict=True):
            part.append(sides[better[: count - found]])
        found = min(count, found + len(better))
        if progress is not None:
            progress("pairs", found, count)
        if found == count:
            break
    if found < count:
        raise ConfigError(f"{winner} earned more than {loser} at {found} starts of {flown_starts}; use more --steps")
    observations, actions, lengths, scores = (torch.cat(part) for part in parts)
    metadata = {
        "winner": winner,
        "loser": loser,
        "seed": seed,
        "won": share / flown_starts,
        "decision_hz": config.dynamics.decision_hz,
        "limits": [*config.dynamics.max_speed, config.dynamics.max_yaw_rate],
        "max_distance": config.max_distance,
        "vocabulary": {name: number for name, number in scenes.vocabulary.items() if number <= _MOST_HALF_IDS},
        "scenes": sorted(frozenset().union(*(scene.hashes() for scene in scenes.scenes))),
    }
    return Pairs(observations, actions, lengths, scores, metadata)


def _flight(
    env: NavigationEnv, scenes: Field, name: str, steps: int, seed: int, episode: int, config: EnvConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Simulate the first decisions of an episode; return (B, L, …) float16, (B, L, 4), lengths (B,) and returns (B,).

    A segment ends with its episode; entries beyond its length are 0.
    """
    pilot = build_pilot(
        name, seed=seed, max_distance=config.max_distance, dynamics=config.dynamics, sensor=config.sensor
    )
    rows = env.num_envs
    if pilot.privileged:
        pilot.attach(scenes)
    pilot.reset(torch.ones(rows, dtype=torch.bool), torch.arange(rows) + episode * rows)
    obs = env.reset(episode=episode)
    seen, flown, total = [], [], torch.zeros(rows, dtype=torch.float64)
    lengths, going = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    for _ in range(steps):
        now = env.poses()
        estimate = pose_rows(now["position"], now["yaw"]) if config.sensor.needs_odometry else None
        action = pilot.act_at(obs, Pose(**now, estimate=estimate, scan_age=env.scan_age)).clamp(-1, 1)
        seen.append(_halved(obs) * going[:, None, None, None])
        flown.append(action.float() * going[:, None])
        batch = env.step(action)
        total += batch.reward.double() * going
        lengths += going
        # The next observation of a row that has ended is another episode's.
        going = going & ~(batch.terminated | batch.truncated)
        obs = batch.obs
    return torch.stack(seen, dim=1), torch.stack(flown, dim=1), lengths, total


def _halved(obs: Tensor) -> Tensor:
    """Convert observations (B, 3, Az, El) to float16; ids that float16 cannot represent become unnamed."""
    halved = obs.half()
    halved[:, 1][obs[:, 1] > _MOST_HALF_IDS] = UNNAMED
    return halved


def write_pairs(path: Path | str, pairs: Pairs) -> None:
    """Write preference pairs to a JSONL file, atomically."""
    header = {
        "format": "navi-pairs",
        "version": 1,
        "observation": list(pairs.observations.shape[3:]),
        "action_axes": pairs.actions.shape[-1],
        "steps": pairs.observations.shape[2],
        "pairs": len(pairs),
        **pairs.metadata,
    }
    lines = [json.dumps(header, sort_keys=True)]
    for i in range(len(pairs)):
        record = {}
        for side, name in enumerate(_SIDES):
            n = int(pairs.lengths[i, side])
            raw = pairs.observations[i, side, :n].numpy().astype("<f2").tobytes()
            record[name] = {
                "observations": {"zlib": base64.b64encode(zlib.compress(raw, 6)).decode()},
                "actions": [[round(float(x), 6) for x in row] for row in pairs.actions[i, side, :n]],
                "score": float(pairs.scores[i, side]),
            }
        lines.append(json.dumps(record))
    write_durably(Path(path), ("\n".join(lines) + "\n").encode())


def read_pairs(path: Path | str) -> tuple[Pairs, str]:
    """Load a preference-pairs file; return the pairs and the SHA-256 of the file.

    Raises:
        DemoError: The file is missing or breaks the format; line and field are named.
    """
    path = Path(path)
    data = _bytes(path)
    lines = [line for line in data.split(b"\n") if line.strip()]
    header = _json(path, lines[0] if lines else b"", 1)
    count = len(lines) - 1
    shape, axes, steps = _checked_sizes(path, header, count)
    observations = torch.zeros((count, 2, steps, *shape), dtype=torch.float16)
    actions, lengths = torch.zeros((count, 2, steps, axes)), torch.zeros((count, 2), dtype=torch.int64)
    scores = torch.zeros((count, 2), dtype=torch.float64)
    for i, line in enumerate(lines[1:]):
        record = _json(path, line, i + 2)
        for side, name in enumerate(_SIDES):
            where = f"line {i + 2}, {name}"
            segment = record.get(name)
            if not isinstance(segment, dict):
                raise DemoError("is missing", path=path, field=where)
            acted = _numbers(segment.get("actions"), (None, axes), path, f"{where}.actions")
            n = len(acted)
            if not 1 <= n <= steps:
                raise DemoError(f"{n} decisions; allowed: 1 … {steps}", path=path, field=f"{where}.actions")
            seen = _observed(segment.get("observations"), (n, *shape), path, f"{where}.observations")
            observations[i, side, :n] = torch.from_numpy(seen)
            actions[i, side, :n] = torch.from_numpy(acted)
            lengths[i, side], scores[i, side] = n, _score(segment.get("score"), path, f"{where}.score")
    known = {"format", "version", "observation", "action_axes", "steps", "pairs"}
    metadata = {key: value for key, value in header.items() if key not in known}
    return Pairs(observations, actions, lengths, scores, metadata), hashlib.sha256(data).hexdigest()


def with_pairs_hash(config: TrainConfig) -> TrainConfig:
    """Add the content hash of the DPO pairs file to the configuration: other pairs are another run.

    Raises:
        DemoError: The file cannot be read.
    """
    if config.algorithm != "dpo" or config.dpo.pairs is None:
        return config
    digest = hashlib.sha256(_bytes(Path(config.dpo.pairs))).hexdigest()
    return config.model_copy(update={"dpo": config.dpo.model_copy(update={"pairs_hash": digest})})


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DemoError(f"cannot be read: {error.strerror}", path=path) from None


def _checked_sizes(path: Path, header: dict[str, Any], count: int) -> tuple[list[int], int, int]:
    """Validate a pairs header against its `count` pairs: return observation shape, action dimensions, steps."""
    if (header.get("format"), header.get("version")) != ("navi-pairs", 1):
        raise DemoError("the first line is no header of navi-pairs, version 1", path=path, field="format")
    shape = header.get("observation")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 3 or not all(_count(n, 2**20) for n in shape):
        raise DemoError(f"observation is {shape!r}; expected one to three sizes", path=path, field="observation")
    axes, steps = header.get("action_axes", 0), header.get("steps", 0)
    if not _count(axes, 64) or not _count(steps, _MOST_STEPS):
        raise DemoError(f"action_axes {axes!r}, steps {steps!r} are no sizes", path=path, field="steps")
    if not 2 <= count <= _MOST_PAIRS or header.get("pairs", count) != count:
        raise DemoError(f"{count} pairs follow, the header has {header.get('pairs')}", path=path, field="pairs")
    numbers = count * 2 * steps * math.prod(shape)
    if numbers > _MOST_NUMBERS:
        raise DemoError(f"{numbers:,} numbers of observations; at most {_MOST_NUMBERS:,} are read", path=path)
    return shape, axes, steps


def _score(value: object, path: Path, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise DemoError(f"is {value!r}, no finite number", path=path, field=where)
    return float(value)


def _count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _json(path: Path, line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DemoError("is no JSON object", path=path, field=f"line {number}")
    return found


def _numbers(
    value: object, shape: tuple[int | None, ...], path: Path, where: str, dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    try:
        # A number beyond the range of the type becomes infinite and is refused.
        with np.errstate(over="ignore"):
            found = np.asarray(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError):
        found = np.full(0, np.nan)
    fits = found.ndim == len(shape) and all(a is None or a == b for a, b in zip(shape, found.shape, strict=True))
    if not fits or not np.isfinite(found).all():
        sizes = " × ".join("n" if a is None else str(a) for a in shape)
        raise DemoError(f"expected {sizes} finite numbers", path=path, field=where)
    return found


def _observed(value: object, shape: tuple[int, ...], path: Path, where: str) -> npt.NDArray[Any]:
    if not isinstance(value, dict):
        return _numbers(value, shape, path, where, np.float16)
    size = 2 * math.prod(shape)
    try:
        unpack = zlib.decompressobj()
        raw = unpack.decompress(base64.b64decode(value["zlib"], validate=True), size + 1)
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
        raw = b""
    found = np.frombuffer(raw, dtype="<f2") if len(raw) == size else np.full(1, np.nan, np.float16)
    if len(raw) != size or not np.isfinite(found).all():
        raise DemoError(f"is no zlib of {size} bytes of finite float16 numbers", path=path, field=where)
    return found.reshape(shape).copy()
