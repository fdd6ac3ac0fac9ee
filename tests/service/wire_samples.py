"""One valid message of each type, and a second of the types that have variants."""

from __future__ import annotations

import numpy as np

from navi_core.service.wire import (
    Action,
    BatchStepRequest,
    BatchStepResult,
    DescribeRequest,
    Description,
    DistanceMatrix,
    Fault,
    RobotPose,
    StepRequest,
    StepResult,
    TelemetryEvent,
)


def pose() -> RobotPose:
    return RobotPose(1.5, 1.2, -3.0, 0.0, 0.0, 0.25, 1700000000.5)


def matrix(az: int = 8, el: int = 4, overhead: bool = False) -> DistanceMatrix:
    depth = np.linspace(0, 1, az * el, dtype=np.float32).reshape(1, az, el)
    return DistanceMatrix(
        episode_id=3,
        env_ids=np.array([7], np.int32),
        matrix_shape=(az, el),
        depth=depth,
        delta_depth=depth * 0,
        semantic=np.full((1, az, el), 5, np.int32),
        valid_mask=depth < 1,
        overhead=np.zeros((256, 256, 3) if overhead else (0, 0, 3), np.uint8),
        robot_pose=pose(),
        step_id=12,
        timestamp=1700000000.5,
    )


def action(env_id: int = 7, step_id: int = 13) -> Action:
    linear, angular = np.array([[1, 0, -0.5]], np.float32), np.array([[0, 0, 0.25]], np.float32)
    return Action(np.array([env_id], np.int32), linear, angular, "v003", step_id, 1700000000.5)


def result() -> StepResult:
    return StepResult(13, 7, 3, False, True, 0.5, 2.5, 1700000000.5)


def all_messages() -> list:
    return [
        matrix(),
        matrix(overhead=True),
        action(),
        StepRequest(action(), 13, 1700000000.5),
        result(),
        BatchStepRequest((action(1), action(2)), 13, 1700000000.5),
        BatchStepResult((result(),), (matrix(), matrix(16, 4))),
        DescribeRequest(1700000000.5),
        Description(
            env_ids=np.array([0, 1], np.int32),
            matrix_shape=(8, 4),
            max_distance=100.0,
            limits=np.array([5, 2, 3, 3], np.float32),
            decision_hz=10.0,
            max_steps=1000,
            semantic_ids=np.array([1, 2], np.int32),
            semantic_names=("wall", "floor"),
            timestamp=1700000000.5,
        ),
        TelemetryEvent("actor.inference.perf", 3, 7, 13, np.arange(4, dtype=np.float32), 1700000000.5),
        Fault("malformed", "what is wrong", 1700000000.5),
    ]
