"""Explorer page backend: receives flight controls, steps the drone in real time (10 Hz), sends frames.

Time stops while no page is open, and the drone hovers when the page is silent for a while: a hanging tab or a lost
connection must not fly into a wall. Time also waits for a page that shows old frames, so that keys act on what is seen.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from navi_core.demos import export_minari, load_demonstration, read_index
from navi_core.errors import ConfigError, DemoError, NaviError, as_argument
from navi_core.service.explorer.session import ExplorerSession
from navi_core.service.viewing.meanings import TERM_UNITS
from navi_core.service.viewing.meshes import store_mesh
from navi_core.service.web.hub import Hub, panorama_arrays, trajectory_array
from navi_core.world.floor.overhead import floor_height

_MAP_EVERY = 5
"""Decisions per map message."""
_HOVER = (0.0, 0.0, 0.0, 0.0)
_BEHIND_SECONDS = 0.5
"""Age of the frame that a page shows from which on time waits for it [s]."""
_PACE_DECISIONS = 20
"""Last decisions whose mean interval is the pace of the flight."""
_SLOW_PACE = 0.75
"""Share of real time below which the page shows the pace."""
_WARN_SHARE = 0.9
"""Share of the longest flight from which on the page shows what is left."""
_SLOW = ("next", "previous", "scene", "export")
"""Slow commands: they compile a scene, or read every flight."""


class ExploreShow:
    """Page backend of an `ExplorerSession`: real-time loop and command handlers.

    Args:
        session: Explorer session to show.
    """

    def __init__(self, session: ExplorerSession) -> None:
        self.session = session
        self.hub = Hub(self._viewers_changed)
        self.sharp = False
        self.session.assist = True
        self._mesh: tuple[object, str] = (None, "")
        self._axes: tuple[float, ...] = _HOVER
        self._commanded_at = 0.0
        self._turn = asyncio.Lock()
        self._session_lock = threading.Lock()
        """Mutex of the thread that changes the session: a cancelled task leaves its thread running."""
        names = ", ".join(path.name for path in session.recovered)
        self._notice = f"saved {names}: an explorer was killed while it recorded" if names else ""
        self._exported: tuple[list[str], Path] | None = None
        """Content of the flights of the last export, and its folder."""
        self._sent_trajectory = -1
        self._watched = asyncio.Event()
        self._sent_at = time.monotonic()
        """Time of the newest frame."""
        self._seen_at: float | None = None
        """Time of the newest frame that a page has shown; None while no page reports it."""
        self._flown: deque[float] = deque(maxlen=_PACE_DECISIONS)
        """Times of the last decisions."""
        self._orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "record": lambda _: self.session.record(),
            "finish": lambda _: self._finish(),
            "discard": lambda _: self._discard(),
            "undo": lambda order: self._undo(order),
            "pause": lambda order: self._pause(order),
            "respawn": lambda _: self._move(self.session.respawn),
            "next": lambda _: self._move(lambda: self._open(self.session.number + 1)),
            "previous": lambda _: self._move(lambda: self._open(self.session.number - 1)),
            "scene": lambda order: self._move(lambda: self._open(_whole(order, "number"))),
            "assist": lambda order: setattr(self.session, "assist", bool(order.get("on"))),
            "view": lambda order: setattr(self, "sharp", bool(order.get("sharp"))),
            "export": lambda _: self._export(),
        }

    async def run(self) -> None:
        """Run the real-time flight loop until cancelled; a flight being recorded is then saved."""
        period = self.session.config.dynamics.decision_seconds
        self._send_all()
        decision = 0
        deadline = time.monotonic()
        try:
            while True:
                if not self.hub.viewers:
                    self._watched.clear()
                    await self._watched.wait()
                    self._flown.clear()
                    deadline = time.monotonic()
                if self._behind() > _BEHIND_SECONDS:
                    await asyncio.sleep(period / 4)
                    continue
                async with self._turn:
                    await asyncio.to_thread(self._fly)
                    self._flown.append(time.monotonic())
                    self._show(with_map=decision % _MAP_EVERY == 0)
                decision += 1
                deadline = max(deadline + period, time.monotonic() - period)
                await asyncio.sleep(max(0.0, deadline - time.monotonic()))
        finally:
            with self._session_lock:
                self.session.finish()

    async def order(self, order: dict[str, Any]) -> None:
        """Execute a command message of the page.

        Raises:
            NaviError: The order is unknown or cannot be executed.
        """
        name = order["do"]
        if name == "command":
            self._axes, self._commanded_at = _axes(order), time.monotonic()
            return
        if name == "seen":
            self._take_seen(order)
            return
        if name not in self._orders:
            raise ConfigError(f"unknown order {name!r}; allowed: command, seen, {', '.join(self._orders)}")
        async with self._turn:
            if name in _SLOW:
                self.hub.send_phase("updating", "one moment")
            try:
                await asyncio.to_thread(self._execute, name, order)
            except NaviError as error:
                self._notice = str(error)
                raise
            finally:
                self._send_all()

    def _execute(self, name: str, order: dict[str, Any]) -> None:
        with self._session_lock:
            self._orders[name](order)

    def _take_seen(self, order: dict[str, Any]) -> None:
        """Take in the time `at` of a frame that a page has shown; of several pages the quickest counts."""
        at = order.get("at")
        if isinstance(at, bool) or not isinstance(at, int | float) or not at <= self._sent_at:
            raise ConfigError(f"{str(at)[:40]!r} is no frame's time")
        self._seen_at = float(at) if self._seen_at is None else max(self._seen_at, float(at))

    def _behind(self) -> float:
        """Return the age of the frame that the page shows, against the newest one [s]."""
        return 0.0 if self._seen_at is None else self._sent_at - self._seen_at

    def _pace(self) -> float:
        """Return flown time over real time of the last decisions."""
        spent = self._flown[-1] - self._flown[0] if self._flown else 0.0
        return (len(self._flown) - 1) * self.session.config.dynamics.decision_seconds / spent if spent > 1.0 else 1.0

    def _fly(self) -> None:
        silent = time.monotonic() - self._commanded_at > self.session.config.idle_seconds
        before, flown = self.session.recording, False
        try:
            with self._session_lock:
                flown = self.session.fly(_HOVER if silent else self._axes)
        except DemoError as error:
            # The longest flight is saved automatically. On a full disk it is kept, and time stops until there is room.
            self.session.paused = True
            self._notice = f"the flight is not saved yet: {error}"
        if before is not None and self.session.recording is None:
            self._notice = f"saved {self.session.saved[-1].name}: a flight has at most {len(before)} decisions"
        elif flown and before is not None and len(before) == int(_WARN_SHARE * self.session.config.max_decisions):
            seconds = (self.session.config.max_decisions - len(before)) * self.session.config.dynamics.decision_seconds
            self._notice = f"{seconds:.0f} s are left: this flight is then saved and ended (hovering counts)"

    def _show(self, *, with_map: bool) -> None:
        session = self.session
        shown = session.sharp_view() if self.sharp else session.observation
        x, y, z, yaw = session.pose()
        self._sent_at = round(time.monotonic(), 3)
        facts = {
            "at": self._sent_at,
            "pose": [x, y, z, yaw],
            "max_distance": session.config.max_distance,
            "step": len(session.trajectory) - 1,
            **session.last,
            "weights": session.env.config.reward.resolved(),
            "units": TERM_UNITS,
            "seen_share": session.seen_share(),
            "sharp": self.sharp,
        }
        self.hub.send("frame", facts, panorama_arrays(shown[0], shown[1], shown[2], session.config.max_distance))
        if session.trajectory_version != self._sent_trajectory:
            self._sent_trajectory = session.trajectory_version
            self.hub.send("trajectory", {}, {"points": trajectory_array(session.trajectory)})
            # Not for pages that open later.
            self.hub.send("ghost", {}, {"points": trajectory_array(list(session.ghost))})
            self.hub.forget("ghost")
            session.ghost = ()
            with_map = True
        if with_map:
            view, picture = session.map()
            place = {"corner": view.corner, "metres_per_pixel": view.metres_per_pixel, "height": view.height}
            floor = floor_height(session.env.field, 0, y, session.env.floors[0])
            self.hub.send("map", {**place, "floor": floor}, {"image": picture})
        self.hub.send("flight", self._flight())
        self._show_phase()

    def _show_phase(self) -> None:
        if self.session.paused:
            self._flown.clear()
            self.hub.send_phase("paused")
        elif (pace := self._pace()) < _SLOW_PACE:
            # The drone flies as quickly as this machine computes and the page shows.
            self.hub.send_phase("updating", f"slow: {pace:.1f} of real time")
        else:
            self.hub.send_phase("flying")

    def _send_all(self) -> None:
        """Send the messages that change only by commands: title, names, and the present state."""
        session = self.session
        self.hub.send(
            "hello",
            {
                "mode": "explorer",
                "title": session.scene.name,
                "folder": str(session.folder) if session.folder is not None else None,
                "names": {str(number): name for number, name in session.env.field.semantic_names.items()},
            },
        )
        low, high = session.env.field.bounds(0).tolist()
        self.hub.send("scene", {"low": low, "high": high, "mesh": self._mesh_key()})
        self._show(with_map=True)

    def _mesh_key(self) -> str:
        """Return the key of the scene's stored mesh; empty with a notice where it cannot be stored."""
        scene = self.session.scene
        if self._mesh[0] is not scene:
            self._mesh = (scene, "")
            try:
                self._mesh = (scene, store_mesh(scene))
            except NaviError as error:
                self._notice = f"the view has no mesh: {error}"
        return self._mesh[1]

    def _flight(self) -> dict[str, Any]:
        session = self.session
        log = session.recording
        return {
            "recording": log is not None,
            "recorded": len(log) if log is not None else 0,
            "contacts": session.contacts(),
            "limit": session.config.max_decisions,
            "paused": session.paused,
            "assist": session.assist,
            "decision_seconds": session.config.dynamics.decision_seconds,
            "clone": f"navi train bc --demos {as_argument(session.folder)}" if session.folder is not None else "",
            "number": session.number,
            "scenes": session.progress(),
            "saved": [path.name for path in session.saved],
            "undo_decisions": session.config.undo_decisions,
            "notice": self._notice,
        }

    def _finish(self) -> None:
        flown, touched = len(self.session.recording or ()), self.session.contacts()
        path = self.session.finish()
        facts = f"{flown * self.session.config.dynamics.decision_seconds:.1f} s, {touched} contacts"
        self._notice = (
            f"saved {path.name}: {facts}" if path else "nothing to save: fewer than two decisions were recorded"
        )

    def _discard(self) -> None:
        self.session.discard()
        self._notice = "the flight was dropped"

    def _undo(self, order: dict[str, Any]) -> None:
        wanted = _whole(order, "decisions") if "decisions" in order else None
        taken = self.session.undo(wanted)
        seconds = taken * self.session.config.dynamics.decision_seconds
        self._notice = f"took back {seconds:.1f} s" if taken else "there is nothing to take back"

    def _pause(self, order: dict[str, Any]) -> None:
        self.session.paused = bool(order.get("on", not self.session.paused))

    def _move(self, change: Callable[[], None]) -> None:
        """Change the scene or start pose; the session saves a recorded flight, and the page shows its name."""
        before = len(self.session.saved)
        change()
        self._axes = _HOVER
        saved = self.session.saved[before:]
        self._notice = f"saved {saved[-1].name}" if saved else ""

    def _open(self, number: int) -> None:
        self.session.open(number % len(self.session.choices))

    def _export(self) -> None:
        """Export the folder's flights as a Minari dataset beside it, unless they are exported already."""
        folder = self.session.folder
        if folder is None or not (folder / "index.json").exists():
            raise DemoError("no flight was saved yet; record one first", path=folder or Path("."))
        rows = read_index(folder)["files"]
        flights = [row["content_hash"] for row in rows]
        if self._exported is not None and self._exported[0] == flights and self._exported[1].exists():
            self._notice = f"these {len(rows)} flights are exported already: {self._exported[1]}"
            return
        number, target = 0, folder.with_name(f"{folder.name}-minari")
        while target.exists():
            number += 1
            target = folder.with_name(f"{folder.name}-minari-{number}")
        files = [folder / row["file"] for row in rows]
        export_minari(target, map(load_demonstration, files), dataset_id="navi/explorer-v0")
        self._exported = flights, target
        self._notice = f"Minari dataset of {len(files)} flights: {target}"

    def _viewers_changed(self, viewers: int) -> None:
        # The page that reported what it shows may be the one that left.
        self._seen_at = None
        if viewers:
            # A new viewer has no trajectory yet.
            self._sent_trajectory = -1
            self._watched.set()
        else:
            self._axes = _HOVER


def _axes(order: dict[str, Any]) -> tuple[float, ...]:
    axes = order.get("axes")
    good = isinstance(axes, list) and len(axes) == 4
    if not good or not all(isinstance(a, int | float) and abs(a) <= 1e308 for a in axes):  # type: ignore[union-attr]
        raise ConfigError(f"a command has `axes`, four finite numbers in [−1, 1]; got {str(axes)[:60]}")
    return tuple(float(min(max(a, -1), 1)) for a in axes)  # type: ignore[union-attr]


def _whole(order: dict[str, Any], name: str) -> int:
    value = order.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise ConfigError(f"{name} is {str(value)[:40]!r}; expected a whole number from 0")
    return value
