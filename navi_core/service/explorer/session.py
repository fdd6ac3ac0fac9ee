"""Explorer session: manual flight of one drone through scenes, with recording of demonstrations and undo.

The drone flies in the environment that policies train in, so a recorded flight has the observations of a policy. Undo
returns to a saved state and repeats the decisions since, which is exact: the environment is deterministic. A flight
that is being recorded is also in a journal; the next explorer saves the flight of a killed one.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from navi_core.config import EnvConfig, ExplorerConfig
from navi_core.demos import Demonstration, index_folder, save_beside
from navi_core.errors import ConfigError, DemoError
from navi_core.scenes import Scene
from navi_core.scenes.naming import file_stem
from navi_core.service.explorer.assist import FlightAssist
from navi_core.service.explorer.flight_journal import FlightJournal, flight_of, recover_flights
from navi_core.world import Field, NavigationEnv, SphericalSensor, StepBatch
from navi_core.world.floor.overhead import Overhead, OverheadMaps, tint_seen

PILOT = "person"
"""Pilot name of manual flights in demonstration files."""
_AT_REST: dict[str, Any] = {
    "speed": 0.0, "reward": 0.0, "terms": {}, "collided": False, "episode_return": 0.0, "slowed": 1.0,
}  # fmt: skip
_STATE_EVERY = 20
"""Interval of saved environment states (decisions); undo restores one and replays from it."""


@dataclass(frozen=True)
class SceneChoice:
    """Lazily loaded scene of the explorer: compiled or read when it is opened."""

    name: str
    """Display name before the scene is loaded."""
    load: Callable[[], Scene]
    """Function that loads the scene."""


class ExplorerSession:
    """Explorer session of one manually flown drone; not thread-safe.

    Args:
        choices: Scenes, in their order.
        config: Sensor, dynamics, limits.
        folder: Dataset of the flights; None does not record.

    Raises:
        ConfigError: No scene.
        DemoError: The folder holds files that are no demonstrations of this sensor, or cannot be written.

    Attributes:
        scene: The scene being flown.
        number: Index of the scene among the choices.
        env: Environment of the scene, one row.
        observation: (3, Az, El) of the drone.
        trajectory: Positions since the start of the flight, (x, y, z) each [m].
        trajectory_version: Changes whenever `trajectory` changes other than by growing.
        last: Facts of the last decision: weighted `reward`, unweighted `terms`, `speed` after it [m/s], whether it
            `collided`, the sum of the flight's rewards so far (`episode_return`), and the share of the commanded
            translation that the assist left (`slowed`).
        assist: Whether commands are slowed before obstacles; what is flown is recorded.
        ghost: Positions that the last undo took back.
        paused: Whether time is stopped.
        recording: The flight being recorded, or None.
        saved: Files written by this session.
        recovered: Files of `saved` that were recovered from journals of killed explorers.
    """

    trajectory_version = 0
    assist = False
    ghost: Sequence[tuple[float, float, float]] = ()
    recording: FlightJournal | None = None

    def __init__(
        self, choices: Sequence[SceneChoice], config: ExplorerConfig | None = None, folder: Path | None = None
    ) -> None:
        if not choices:
            raise ConfigError("no scene to explore; name a .gmdag or mesh file, or family:seeds as in apartment:0-3")
        self.choices, self.config, self.folder = tuple(choices), config or ExplorerConfig(), folder
        self.saved: list[Path] = []
        self.recovered: list[Path] = []
        self._flights: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        if folder is not None:
            self._recover(folder, self._index_folder(folder))
        self.open(0)

    def open(self, number: int) -> None:
        """Load a scene and begin a flight in it; a flight being recorded is saved first.

        Raises:
            ConfigError: There is no such scene.
            SceneError: It cannot be loaded or flown.
        """
        if not 0 <= number < len(self.choices):
            raise ConfigError(f"scene {number}; there are {len(self.choices)}, numbered from 0")
        self.finish()
        c = self.config
        scene = self.choices[number].load()
        settings = EnvConfig(
            azimuth_bins=c.azimuth_bins,
            elevation_bins=c.elevation_bins,
            max_distance=c.max_distance,
            dynamics=c.dynamics,
            # The person ends the flight.
            max_steps=2**30,
            void_grace=2**30,
            stagger=False,
        )
        env = NavigationEnv(Field([scene]), 1, settings, c.seed)
        self.number, self.scene, self.env = number, scene, env
        self._sharp = SphericalSensor(env.field, *c.sharp_bins, c.max_distance)
        self._maps = OverheadMaps(env.field, env.floors)
        self._assist = FlightAssist(env)
        self._attempt = -1
        self.respawn()

    def respawn(self) -> None:
        """Reset the drone to the scene's next start pose; a flight being recorded is saved first."""
        self.finish()
        self._attempt += 1
        self.observation = self.env.reset(episode=self._attempt)[0].numpy()
        self._flown: list[npt.NDArray[np.float32]] = []
        self._touched: list[bool] = []
        self._states: list[tuple[int, dict[str, torch.Tensor]]] = []
        self.trajectory: list[tuple[float, float, float]] = []
        self.trajectory_version += 1
        self._recorded_from = 0
        self.ghost = ()
        self.paused = False
        self._update(None)

    def fly(self, action: Sequence[float] | npt.NDArray[np.float32]) -> bool:
        """Step the environment by one action (forward, vertical, lateral, yaw), clamped to [−1, 1]; False while paused.

        Raises:
            ConfigError: Not four finite numbers.
        """
        wanted = np.asarray(action, np.float32)
        if wanted.shape != (4,) or not np.isfinite(wanted).all():
            raise ConfigError(f"a command is four finite numbers in [−1, 1], not {action!r}")
        if self.paused:
            return False
        wanted, slowed = np.clip(wanted, -1.0, 1.0), 1.0
        if self.assist:
            wanted, slowed = self._assist.slowed(self.observation, wanted)
        if self.recording is not None:
            self.recording.add(self.observation, wanted)
        self._step(wanted)
        self.last["slowed"] = slowed
        if self.recording is not None and len(self.recording) >= self.config.max_decisions:
            self.finish()
        return True

    def record(self) -> None:
        """Start recording a flight as a demonstration.

        Raises:
            ConfigError: The session was given no folder.
            DemoError: The folder cannot be written.
        """
        if self.folder is None:
            raise ConfigError("this explorer records no flights; end it and start `navi explore SCENE --record`")
        if self.recording is None:
            self.recording = FlightJournal(self.folder, self._facts())
            self._recorded_from, self.paused = len(self._flown), False

    def finish(self) -> Path | None:
        """Stop recording and save the flight as a demonstration; one of fewer than two decisions is dropped.

        Returns:
            The file, None where there was nothing to save.

        Raises:
            DemoError: It cannot be written.
        """
        if self.recording is None or self.folder is None or len(self.recording) < 2:
            self.discard()
            return None
        path = self._save(self.folder, flight_of(self._facts(), self.recording.decisions, self.folder))
        # Only now: a flight that could not be written may be saved again.
        self.discard()
        self._index_folder(self.folder)
        return path

    def discard(self) -> None:
        """Discard the flight being recorded."""
        if self.recording is not None:
            self.recording.remove()
            self.recording = None

    def contacts(self) -> int:
        """Return the number of decisions with a collision, since the recording began or in the whole flight."""
        return sum(self._touched[self._recorded_from :])

    def undo(self, decisions: int | None = None) -> int:
        """Undo the last decisions by state restore and replay, back to the start of the recording or flight at most.

        Returns:
            Number of undone decisions.
        """
        floor = self._recorded_from if self.recording is not None else 0
        target = max(floor, len(self._flown) - (decisions or self.config.undo_decisions))
        taken = len(self._flown) - target
        if taken <= 0:
            return 0
        again, self.ghost = self._flown[:target], self.trajectory[target:]
        while self._states[-1][0] > target:
            self._states.pop()
        begin, state = self._states.pop()
        self.env.load_state_dict(state)
        self.observation = self.env.observe()[0].numpy()
        self._flown = again[:begin]
        del self._touched[begin:]
        del self.trajectory[begin:]
        self._update(None)
        for action in again[begin:]:
            self._step(action)
        if self.recording is not None:
            self.recording.cut(target - self._recorded_from)
        self.trajectory_version += 1
        return taken

    def pose(self) -> tuple[float, float, float, float]:
        """Return the drone's pose: x, y, z [m] and yaw [rad]."""
        found = self.env.poses()
        x, y, z = found["position"][0].tolist()
        return x, y, z, float(found["yaw"][0])

    def sharp_view(self) -> npt.NDArray[np.float32]:
        """Render a higher-resolution observation, (3, Az, El), for display alone."""
        found = self.env.poses()
        hits = self._sharp.cast(found["position"], found["yaw"], found["scene_index"])
        return self._sharp.observation(hits)[0].numpy()

    def map(self) -> tuple[Overhead, npt.NDArray[np.uint8]]:
        """Return the top-down view, cut near the drone's height, and its (P, P, 3) image with seen floor tinted."""
        view = self._maps.at(0, self.pose()[1])
        return view, tint_seen(view, self.env.view.seen[0].numpy())

    def seen_share(self) -> float:
        """Return the coverage of this flight: seen fraction of the reachable floor."""
        return float(self.env.view.fraction(self.env.counters["scene"])[0])

    def progress(self) -> list[dict[str, Any]]:
        """Return the recording progress of every scene: name, saved flights and their decisions."""
        names = [choice.name for choice in self.choices]
        names[self.number] = self.scene.name
        return [{"scene": name, "flights": self._flights[name], "decisions": self._decisions[name]} for name in names]

    def _step(self, action: npt.NDArray[np.float32]) -> None:
        if len(self._flown) % _STATE_EVERY == 0:
            self._states.append((len(self._flown), self.env.state_dict()))
        batch = self.env.step(torch.from_numpy(action[None]))
        self._flown.append(action)
        self.observation = batch.obs[0].numpy()
        self._update(batch)
        self._touched.append(self.last["collided"])

    def _update(self, batch: StepBatch | None) -> None:
        x, y, z, _ = self.pose()
        self.trajectory.append((x, y, z))
        if batch is None:
            self.last = dict(_AT_REST)
            return
        info = batch.info
        self.last = {
            "speed": float(info["speed"][0]),
            "reward": float(batch.reward[0]),
            "terms": {name: float(value[0]) for name, value in info["reward_terms"].items()},
            "collided": bool(info["collision"][0]),
            "episode_return": float(info["episode_return"][0]),
        }

    def _recover(self, folder: Path, known: set[str]) -> None:
        """Recover the flights of killed explorers, unless they were saved before the kill."""
        failed: list[DemoError] = []

        def save(demo: Demonstration) -> None:
            if demo.content_hash() not in known:
                try:
                    self.recovered.append(self._save(folder, demo))
                except DemoError as error:
                    # The journal is whole; only its copy could not be written.
                    failed.append(error)
                    raise

        recover_flights(folder, save)
        if failed:
            raise failed[0]
        if self.recovered:
            self._index_folder(folder)

    def _facts(self) -> dict[str, Any]:
        c = self.config
        return {
            "bins": (c.azimuth_bins, c.elevation_bins),
            "scene": self.scene.name,
            "decision_hz": c.dynamics.decision_hz,
            "limits": (*c.dynamics.max_speed, c.dynamics.max_yaw_rate),
            "recording_date": datetime.now(UTC).isoformat(timespec="seconds"),
            "max_distance": c.max_distance,
            "pilot": PILOT,
            "scene_hash": self.scene.content_hash(),
            "source_hash": self.scene.source_hash,
            "vocabulary": dict(self.env.field.vocabulary),
        }

    def _save(self, folder: Path, demo: Demonstration) -> Path:
        taken = {path.name for path in folder.glob("*.npz")}
        # The name comes from the scene's file, which is not trusted: unchanged it could lead out of the folder.
        stem = file_stem(demo.scene)
        names = (f"{stem}-{PILOT}-{number:05d}.npz" for number in itertools.count())
        # Another explorer may record into the same folder.
        path = save_beside((folder / name for name in names if name not in taken), demo)
        self.saved.append(path)
        return path

    def _index_folder(self, folder: Path) -> set[str]:
        """Index the dataset folder, count the flights of each scene, and return the content hashes of the flights."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DemoError(f"cannot be made: {error.strerror or error}", path=folder) from error
        files = sorted(folder.glob("*.npz"))
        if not files:
            return set()
        index = index_folder(folder, (path.name for path in files))
        sensor = (self.config.azimuth_bins, self.config.elevation_bins)
        if (index["azimuth_bins"], index["elevation_bins"]) != sensor:
            raise DemoError(
                f"its flights see {index['azimuth_bins']}x{index['elevation_bins']}, this session "
                f"{sensor[0]}x{sensor[1]}; choose another folder, or --azimuth-bins and --elevation-bins",
                path=folder,
            )
        self._flights.clear()
        self._decisions.clear()
        for row in index["files"]:
            self._flights[row["scene"]] += row["episodes"]
            self._decisions[row["scene"]] += row["decisions"]
        return {row["content_hash"] for row in index["files"]}
