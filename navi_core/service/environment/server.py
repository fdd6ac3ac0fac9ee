"""Environment server: queue of step requests, batched simulation steps, and published observations.

Requests that wait together are flown as one batch of the drones they name; the second request for a drone is flown in
the next batch. Drones without a request stand still and cost nothing.
"""

import secrets
import time
from dataclasses import replace

import numpy as np
import torch

from navi_core.config import EnvConfig, EnvironmentConfig
from navi_core.errors import NaviError, WireError
from navi_core.service.environment.step_requests import Request, RequestQueue
from navi_core.service.observations import ObservationPublisher, SceneView, distance_matrix, goal_event
from navi_core.service.server import Server
from navi_core.service.viewing.digest import SCENE_EVENT, payload
from navi_core.service.viewing.feed import selected_drone
from navi_core.service.wire import (
    Action,
    BatchStepResult,
    Description,
    DistanceMatrix,
    Fault,
    Message,
    StepResult,
    decode,
    encode,
)
from navi_core.service.wire.sockets import LINGER_MS, Publisher, Socket, Subscriber, poller_of
from navi_core.world import Field, NavigationEnv, Poses

_OBSERVATIONS, _TELEMETRY = "distance_matrix_v2", "telemetry_event_v2"
_DESCRIBE = b"describe_request_v2"


class EnvironmentServer(Server):
    """Server of a vectorised `NavigationEnv`: steps its drones on request over the wire protocol.

    Args:
        field: Scenes.
        env: Observation, dynamics, reward, episodes; `stagger` is off here.
        config: Endpoints, mode, number of drones.

    Raises:
        ServiceError: A port is taken.
        SceneError: A scene without a viable spawn.

    Attributes:
        publisher: Publishes observations; its endpoint has the port that was taken.
        answer_endpoint: Where requests are answered (mode step).
        steps: Decisions flown, summed over drones.
    """

    def __init__(self, field: Field, env: EnvConfig | None = None, config: EnvironmentConfig | None = None) -> None:
        self.config = c = config or EnvironmentConfig()
        self.env = NavigationEnv(
            field, c.sessions, (env or EnvConfig()).model_copy(update={"stagger": False}), seed=c.seed
        )
        publisher = Publisher(c.publish, c.wire, purpose="observations of the environment", option="--pub")
        super().__init__("environment", c.http, publisher, c.wire)
        self._viewers = ObservationPublisher(publisher, c.wire)
        self._viewers.selected = c.first_env_id
        self._view = SceneView(self.env)
        self.answer_endpoint = ""
        self._router = self._actions = None
        peers = [publisher.socket]
        if c.mode == "step":
            # ZeroMQ drops answers beyond this queue silently, and makes room only in halves of it.
            self._router = Socket("ROUTER", c.wire, "step requests of the environment", "--rep", SNDHWM=2 * c.backlog)
            self._parts.callback(self._router.close, LINGER_MS)
            try:
                self.answer_endpoint = self._router.bind(c.answer)
            except NaviError:
                self.close()
                raise
            self.warn_if_reachable(self.answer_endpoint)
            peers.append(self._router)
        else:
            self._actions = Subscriber(c.actions, ("action_v2",), c.wire)
            self._parts.callback(self._actions.close)
        self._poller = poller_of(*peers)
        # Episodes of a restarted server must differ from those before, whatever the clock shows.
        self._first_episode = secrets.randbits(32) << 20
        self._obs = list(self.env.reset())
        self._before: list[torch.Tensor | None] = [None] * c.sessions
        self._step_ids = [0] * c.sessions
        self._results: dict[int, StepResult] = {}
        self._requests = RequestQueue(c, self.metrics)
        self._flown_at = [time.monotonic()] * c.sessions
        self._goal_sent_at = [0.0] * c.sessions
        self._due = time.monotonic()
        self.steps = self._reported_steps = 0
        self._step_seconds = 0.0

    def turn(self, wait_ms: int) -> None:
        """Run one iteration of the server loop: receive step requests, step the drones, reply."""
        if self.config.mode == "stream":
            self._stream_step(wait_ms)
        else:
            if not self._requests:
                self._poller.poll(wait_ms)
            self._receive()
            self._fly_batch()
        telemetry, observations = self.publisher.newcomers(_TELEMETRY), self.publisher.newcomers(_OBSERVATIONS)
        if telemetry or observations:
            for row in range(self.config.sessions):
                self._publish_goal(row)
                if observations:
                    self.publisher.publish(self._observation(row))
        self._publish_idle()
        if self.heartbeat(self.config.sessions, self.steps):
            self._report()

    def drain(self) -> None:
        """Drain for shutdown: execute and answer the queued step requests."""
        if self.config.mode == "step":
            self._receive()
            while self._requests:
                self._fly_batch()
        self.publish_event("environment.drained", (self.steps,))

    def _receive(self) -> None:
        """Receive and enqueue step requests, at most a backlog: a flood does not keep the drones from flying."""
        assert self._router is not None
        for frames in self._router.arrived(self.config.backlog):
            # REQ sockets put an empty frame before the message; DEALER sockets may.
            split = 2 if frames[1:2] == [b""] else 1
            try:
                if frames[split : split + 1] == [_DESCRIBE]:
                    decode(frames[split:], self._limits)
                    self._reply(frames[:split], self._description())
                else:
                    self._requests.add(frames[:split], frames[split:])
            except WireError as error:
                self.metrics.count("refused_total", about="requests that were refused")
                self._reply(frames[:split], Fault(error.code, str(error)[:1000], time.time()))

    def _description(self) -> Description:
        """Build the answer to a DescribeRequest."""
        c, named = self.env.config, self.env.field.semantic_names
        return Description(
            env_ids=np.arange(self.config.sessions, dtype=np.int32) + self.config.first_env_id,
            matrix_shape=(c.azimuth_bins, c.elevation_bins),
            max_distance=c.max_distance,
            limits=np.array([*c.dynamics.max_speed, c.dynamics.max_yaw_rate], np.float32),
            decision_hz=c.dynamics.decision_hz,
            max_steps=c.max_steps,
            semantic_ids=np.array(list(named), np.int32),
            semantic_names=tuple(named.values()),
            timestamp=time.time(),
        )

    def _fly_batch(self) -> None:
        """Execute the next batch of step requests, and reply; a repeated request gets its earlier result."""
        batch = self._requests.next_batch()
        rows: dict[int, Action] = {}
        for request in batch:
            for row, action in request.actions.items():
                last = self._results.get(row)
                if last is not None and last.step_id == action.step_id:
                    # The answer was lost on its way: the drone flew this decision already.
                    self.metrics.count("repeated_total", about="requests answered again")
                else:
                    rows[row] = action
        if rows:
            actions = list(rows.values())
            self._step(list(rows), np.concatenate([_commands_of(a) for a in actions]), [a.step_id for a in actions])
        for request in batch:
            self._answer(request)

    def _step(self, rows: list[int], commands: np.ndarray, step_ids: list[int]) -> None:
        """Step a subset of the drones by their commands (N, 4), and store results and observations."""
        start = time.perf_counter()
        episodes = [self._episode(row) for row in rows]
        batch = self.env.step_rows(torch.tensor(rows), torch.from_numpy(commands))
        now = time.time()
        terminated, truncated = batch.terminated.tolist(), batch.truncated.tolist()
        reward, returns = batch.reward.tolist(), batch.info["episode_return"].tolist()
        ended = [done or cut for done, cut in zip(terminated, truncated)]
        for i, row in enumerate(rows):
            self._before[row] = None if ended[i] else self._obs[row]
            self._obs[row] = batch.obs[i]
            self._step_ids[row] = step_ids[i]
            self._flown_at[row] = time.monotonic()
            self._results[row] = StepResult(
                step_id=step_ids[i],
                env_id=row + self.config.first_env_id,
                episode_id=episodes[i],
                done=terminated[i],
                truncated=truncated[i],
                reward=reward[i],
                episode_return=returns[i],
                timestamp=now,
            )
            if ended[i]:
                self._publish_goal(row)
        self.steps += len(rows)
        self.metrics.count("steps_total", len(rows), about="decisions flown")
        self.metrics.count("episodes_total", sum(ended), about="episodes that ended")
        seconds = time.perf_counter() - start
        self._step_seconds += seconds
        self.metrics.latency("step_ms", seconds, about="one batch of decisions")
        self.metrics.gauge("batch_rows", len(rows), about="drones of the last batch")

    def _answer(self, request: Request) -> None:
        """Reply to a step request with its results; a batch also gets its observations."""
        reply: Message
        if request.batch:
            pose = self.env.poses()
            results = tuple(self._results[row] for row in request.actions)
            reply = BatchStepResult(results, tuple(self._observation(row, pose) for row in request.actions))
            wanted, first = selected_drone(self.publisher), self.config.first_env_id
            if wanted is not None and first <= wanted < first + self.config.sessions:
                self._viewers.selected = wanted
            self._viewers.offer(self._viewer_observation)
        else:
            (row,) = request.actions
            reply = self._results[row]
            if self.publisher.watched(_OBSERVATIONS):
                self.publisher.publish(self._observation(row))
        self._reply(request.envelope, reply)

    def _stream_step(self, wait_ms: int) -> None:
        """Step all drones at the decision rate (stream mode); a drone without a fresh action hovers."""
        left = self._due - time.monotonic()
        if left > 0:
            self._poller.poll(min(wait_ms, max(1, int(left * 1000))))
            if time.monotonic() < self._due:
                return
        assert self._actions is not None
        period = self.env.config.dynamics.decision_seconds
        # After a pause the rate continues; missed decisions are not caught up.
        self._due = max(self._due + period, time.monotonic())
        first, count = self.config.first_env_id, self.config.sessions
        commands, is_fresh = np.zeros((count, 4), np.float32), np.zeros(count, bool)
        for message in self._actions.waiting():
            if isinstance(message, Action):
                named = message.env_ids.astype(np.int64) - first
                mine = (named >= 0) & (named < count)
                # Of several actions of one drone the last one counts.
                commands[named[mine]] = _commands_of(message)[mine]
                is_fresh[named[mine]] = True
        self.metrics.count("hovered_total", count - int(is_fresh.sum()), about="decisions without an action")
        rows, now = list(range(count)), time.monotonic()
        self._step(rows, commands, [step_id + 1 for step_id in self._step_ids])
        self.publisher.publish(BatchStepResult(tuple(self._results.values()), ()))
        if self.publisher.watched(_OBSERVATIONS):
            for row in rows:
                if now - self._goal_sent_at[row] >= self._limits.heartbeat_seconds:
                    self._publish_goal(row)
                self.publisher.publish(self._observation(row))

    def _report(self) -> None:
        """Publish the performance since the last report: step quantiles and rays per second of stepping."""
        steps, seconds = self.steps - self._reported_steps, self._step_seconds
        self._reported_steps, self._step_seconds = self.steps, 0.0
        if steps and self.publisher.watched(_TELEMETRY):
            numbers = self.metrics.as_dict()
            rays = steps * self.env.config.azimuth_bins * self.env.config.elevation_bins / seconds
            values = (numbers["step_ms_p50"], numbers["step_ms_p99"], rays, numbers["batch_rows"])
            self.publish_event("environment.sdfdag.perf", values, step_id=self.steps)

    def _publish_idle(self) -> None:
        """Republish the observations of idle drones as a heartbeat."""
        now = time.monotonic()
        if self.config.mode == "step" and self.publisher.watched(_OBSERVATIONS):
            for row, flown in enumerate(self._flown_at):
                if now - flown >= self._limits.heartbeat_seconds:
                    self._flown_at[row] = now
                    self._publish_goal(row)
                    self.publisher.publish(self._observation(row))

    def _publish_goal(self, row: int) -> None:
        """Publish a drone's goal as a telemetry event, in an environment with goals."""
        self._goal_sent_at[row] = time.monotonic()
        if self.publisher.watched(_TELEMETRY):
            goal = goal_event(self.env, row, **self._where(row))
            if goal is not None:
                self.publisher.publish(goal)

    def _episode(self, row: int) -> int:
        return self._first_episode + int(self.env.counters["episode"].numpy()[row])

    def _where(self, row: int) -> dict[str, int]:
        """Return a row's message ids: environment id, episode id and step id."""
        env_id = row + self.config.first_env_id
        return {"env_id": env_id, "episode_id": self._episode(row), "step_id": self._step_ids[row]}

    def _observation(self, row: int, pose: Poses | None = None) -> DistanceMatrix:
        pose, age = pose or self.env.poses(), self.env.scan_age
        return distance_matrix(
            self._obs[row],
            position=pose["position"][row],
            yaw=float(pose["yaw"][row]),
            before=self._before[row],
            age_seconds=0.0 if age is None else int(age[row]) * self.env.config.dynamics.decision_seconds,
            **self._where(row),
        )

    def _viewer_observation(self, env_id: int) -> DistanceMatrix:
        """Build a drone's observation for viewers, now and then with a top-down map and an event of the map's frame."""
        row = env_id - self.config.first_env_id
        matrix = self._observation(row)
        look = self._view.look(row, matrix.robot_pose.y)
        if look is None:
            return matrix
        values, picture = look
        self.publish_event(SCENE_EVENT, payload("scene", values), **self._where(row))
        return replace(matrix, overhead=picture)

    def _reply(self, envelope: list[bytes], message: Message) -> None:
        assert self._router is not None
        if not self._router.send([*envelope, *encode(message)]):
            self.metrics.count("unanswered_total", about="answers that could not be sent")


def _commands_of(action: Action) -> np.ndarray:
    """Convert an action message to (B, 4) commands: forward, vertical, lateral, yaw."""
    return np.concatenate((action.linear_velocity, action.angular_velocity[:, 2:]), axis=1)
