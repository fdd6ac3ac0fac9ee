"""Session table of an actor's drones: observation, pending request, recurrent state, auxiliary input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navi_core.config import DynamicsConfig, ShaperConfig
from navi_core.config.world import MOST_SCAN_AGE
from navi_core.pilots.shield import Shield
from navi_core.policy import RewardShaper
from navi_core.policy.cores.base import State
from navi_core.service.policies.served_model import Runner
from navi_core.service.wire import Action, DistanceMatrix
from navi_core.world.goals import relative_goal
from navi_core.world.occupancy_memory import OccupancyMemory


@dataclass
class Session:
    """Session of one served drone: newest observation, pending request, goal, predicted velocity.

    Attributes:
        env_id: Number on the wire.
        slot: Row of the table.
        matrix: Observation to be answered, or answered last.
        begins: Whether `matrix` is the first of its episode for this model.
        is_finite: Whether the policy's last action was.
        request: Action that was sent and not yet answered.
        requested_at: When it was sent [s, monotonic].
        published: Newest observation published since, or that of the refused request; None without one.
        heard_at: Time of the last message of the drone [s, monotonic].
        velocity: (4,) body velocity predicted by the gate [m/s, rad/s].
        velocity_before: (4,) predicted body velocity before the last decision.
        decisions: Made so far.
        episode_length: Decisions of this episode that were flown for this actor.
        goal: (3,) goal of this episode [m]; None where it is unknown.
        waits_since: Since when `matrix` waits for a goal [s, monotonic]; None where it does not.
    """

    env_id: int
    slot: int
    matrix: DistanceMatrix
    begins: bool = True
    is_finite: bool = True
    request: Action | None = None
    requested_at: float = 0.0
    published: DistanceMatrix | None = None
    heard_at: float = 0.0
    velocity: Tensor = field(default_factory=lambda: torch.zeros(4))
    velocity_before: Tensor = field(default_factory=lambda: torch.zeros(4))
    decisions: int = 0
    episode_length: int = 0
    goal: Tensor | None = None
    waits_since: float | None = None
    shaper: RewardShaper | None = None

    @property
    def is_environment_restarted(self) -> bool:
        """Whether the environment was restarted since the request, so that it does not know the episode."""
        published, request = self.published, self.request
        if published is None or request is None:
            return False
        # An observation of the next episode has the request's step id: it was flown, and its answer was lost.
        return published.episode_id != self.matrix.episode_id and published.step_id != request.step_id

    @property
    def position(self) -> tuple[float, float, float]:
        """Position of the drone: x, y, z [m]."""
        return self.pose[:3]

    @property
    def pose(self) -> tuple[float, float, float, float]:
        """Pose of the drone: x, y, z [m] and yaw [rad]."""
        pose = self.matrix.robot_pose
        return pose.x, pose.y, pose.z, pose.yaw

    @property
    def scan_age_seconds(self) -> float:
        """Age of the scan at the time of its pose [s]."""
        return self.matrix.robot_pose.timestamp - self.matrix.timestamp


def draw_keys(group: Sequence[Session]) -> tuple[Tensor, Tensor]:
    """Return the keys of counter-based random draws: (n,) drone ids and (n,) decision numbers."""
    return torch.tensor([session.env_id for session in group]), torch.tensor([session.decisions for session in group])


class SessionTable:
    """Table of sessions with batched recurrent states and auxiliary inputs, one row per slot.

    Args:
        runner: Inference runner; gives the shapes of the recurrent state.
        capacity: Largest number of sessions.
        shaper: Computes the auxiliary input; None: it is zero.
        shaper_state: Trained curiosity.
        max_distance: Range of the sensor in training, M [m].
        decision_hz: Decision rate in training [Hz].
        dynamics: The drone, for a policy with a shield.
    """

    def __init__(
        self,
        runner: Runner,
        capacity: int,
        shaper: ShaperConfig | None,
        shaper_state: dict[str, object] | None = None,
        *,
        max_distance: float = 100.0,
        decision_hz: float = 10.0,
        dynamics: DynamicsConfig | None = None,
    ) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._by_env: dict[int, Session] = {}
        # The state of a policy without memory has no parts whose shape or length could be read.
        self._rows = 0
        self._zero: tuple[torch.Size, ...] = ()
        self._state: list[Tensor] = []
        self.aux = torch.zeros(capacity, 3)
        self._mapped = torch.zeros(capacity, dtype=torch.bool)
        self._occupancy: OccupancyMemory | None = None
        self._shield: Shield | None = None
        self._sensor: tuple[object, ...] | None = None
        self.renew(runner, shaper, shaper_state, max_distance=max_distance, decision_hz=decision_hz, dynamics=dynamics)

    def __len__(self) -> int:
        return len(self._by_env)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_env.values()))

    def get(self, env_id: int) -> Session | None:
        """Return the session of a drone, or None."""
        return self._by_env.get(env_id)

    def open(self, matrix: DistanceMatrix, now: float) -> Session | None:
        """Open the session of a new drone; None if the table is full."""
        if not self._free:
            return None
        slot = self._free.pop()
        session = Session(int(matrix.env_ids[0]), slot, matrix, heard_at=now, shaper=self._shaper())
        self.aux[slot] = 0.0
        self._mapped[slot] = False
        self._by_env[session.env_id] = session
        if slot >= self._rows:
            self._rows = rows = min(self.capacity, max(8, 2 * slot))
            # States grow with the sessions: one drone does not take the memory of hundreds.
            self._state = [torch.cat([part, part.new_zeros(rows - len(part), *part.shape[1:])]) for part in self._state]
        return session

    def forget(self, seconds: float, now: float) -> list[Session]:
        """Expire the sessions of drones that were silent for more than `seconds`; return them."""
        gone = [session for session in self if now - session.heard_at > seconds]
        for session in gone:
            del self._by_env[session.env_id]
            self._free.append(session.slot)
        return gone

    def gather(self, sessions: list[Session], obs: Tensor) -> tuple[State, Tensor, Tensor]:
        """Gather states, auxiliary inputs and resets of sessions for `obs` (N, 3, Az, El); clears `begins`.

        For a policy with goals each session must have one.
        """
        begin = [session.begins for session in sessions]
        for session in sessions:
            session.begins = False
        slots, reset = torch.tensor([session.slot for session in sessions]), torch.tensor(begin)
        # Overwritten: a policy resets by a product with zero, which leaves NaN as it is.
        if any(begin):
            for part in self._state:
                part[slots[reset].to(part.device)] = 0.0
        aux = self.aux[slots].nan_to_num(0.0, 0.0, 0.0)
        if self._goals or self._occupancy is not None:
            aux = torch.cat([aux, *self._auxiliary_inputs(sessions, obs, slots, reset)], dim=1)
        return tuple(part.index_select(0, slots.to(part.device)) for part in self._state), aux, reset

    def _auxiliary_inputs(self, sessions: list[Session], obs: Tensor, slots: Tensor, reset: Tensor) -> list[Tensor]:
        """Compute occupancy features and relative goals, if the policy reads them."""
        here = torch.tensor([session.pose for session in sessions])
        inputs: list[Tensor] = []
        goal = None
        if self._goals:
            goals = [session.goal for session in sessions if session.goal is not None]
            assert len(goals) == len(sessions)
            goal = relative_goal(here[:, :3], here[:, 3], torch.stack(goals))
        if self._occupancy is not None:
            begins = reset | ~self._mapped[slots]
            inputs.append(self._occupancy.look(obs, here, begins, slots, goal, self._scan_ages(sessions)))
            self._mapped[slots] = True
        return inputs if goal is None else [*inputs, goal]

    def _scan_ages(self, sessions: list[Session]) -> Tensor | None:
        """Return the ages (N,) of the drones' scans [decisions]; None where all are present ones."""
        ages = torch.tensor([session.scan_age_seconds for session in sessions]) * self._decision_hz
        age = ages.round().clamp(0, MOST_SCAN_AGE).to(torch.int64)
        return age if bool(age.any()) else None

    def hovering(self, sessions: Sequence[Session], action: Tensor, after: int) -> Tensor:
        """Return the actions (N, 4), zero where the map has had no way to a frontier for `after` decisions."""
        if self._occupancy is None or not after:
            return action
        slots = torch.tensor([session.slot for session in sessions])
        return torch.where(self._occupancy.done(after, slots)[:, None], 0.0, action)

    def shielded(self, sessions: Sequence[Session], obs: Tensor, action: Tensor) -> Tensor:
        """Return the actions (N, 4) after the policy's shield; as they are for a policy without one."""
        if self._shield is None:
            return action
        slots = torch.tensor([session.slot for session in sessions])
        return self._shield.apply(action, obs, self._scan_ages(list(sessions)), slots)

    def scatter(self, sessions: list[Session], reset: Tensor, state: State, latent: Tensor) -> None:
        """Scatter the states after a decision back to the table, and compute the next auxiliary inputs.

        Args:
            sessions: N drones.
            reset: (N,) bool, an episode began; from `gather`.
            state: Recurrent states of the N drones.
            latent: (N, D).
        """
        slots = torch.tensor([session.slot for session in sessions])
        for part, new in zip(self._state, state):
            part[slots.to(part.device)] = new
        for i, session in enumerate(sessions):
            if session.shaper is not None:
                if reset[i] and session.shaper.memory is not None:
                    session.shaper.memory.clear(torch.ones(1, dtype=torch.bool))
                none = torch.zeros(1)
                shaped = session.shaper.shape(latent[i : i + 1], none, none, none.bool(), 0)
                self.aux[session.slot, 1], self.aux[session.slot, 2] = shaped.loop_similarity[0], shaped.intrinsic[0]

    def renew(
        self,
        runner: Runner,
        shaper: ShaperConfig | None = None,
        shaper_state: dict[str, object] | None = None,
        *,
        max_distance: float = 100.0,
        decision_hz: float = 10.0,
        dynamics: DynamicsConfig | None = None,
    ) -> bool:
        """Reconfigure the table for another policy; return whether the recurrent states are kept.

        Latents of two policies cannot be compared: loop memories and auxiliary inputs begin anew. Occupancy maps of the
        same sensor are kept. States stay where the policy is computed.
        """
        config = runner.config
        self._shaping, self._goals = (shaper, shaper_state or {}, config.width), config.goal
        self._decision_hz = decision_hz
        cell = config.map_cell
        body = (dynamics or DynamicsConfig()) if config.shield else None
        az, el = config.azimuth_bins, config.elevation_bins
        sensor = (az, el, max_distance, cell, body) if config.place_memory else None
        if sensor != self._sensor:
            self._sensor, self._occupancy, self._shield = sensor, None, None
            self._mapped.zero_()
            if sensor is not None:
                # Poses come over the wire: nothing is dead-reckoned, so without a shield the dynamics do not matter.
                self._occupancy = OccupancyMemory(
                    self.capacity, az, el, body or DynamicsConfig(), max_distance, cell=cell, oldest=MOST_SCAN_AGE,
                    shielded=config.shield,
                )  # fmt: skip
                if body is not None:
                    self._shield = Shield(self._occupancy)
        self.aux.zero_()
        for session in self:
            session.shaper = self._shaper()
        zero = runner.initial_state(1)
        shapes = tuple(part.shape[1:] for part in zero)
        if shapes == self._zero:
            return True
        self._zero, self._state = shapes, [part.new_zeros(self._rows, *part.shape[1:]) for part in zero]
        for session in self:
            session.begins = True
        return False

    def _shaper(self) -> RewardShaper | None:
        """Build an evaluation-mode reward shaper for one drone; None if the policy was trained without one."""
        config, state, width = self._shaping
        if config is None:
            return None
        shaper = RewardShaper(config, 1, width).eval()
        shaper.load_state_dict(dict(state))
        return shaper
