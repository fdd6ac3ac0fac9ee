"""Wire protocol: message classes, topics, codec and ZeroMQ sockets; specified in docs/reference/wire.md."""

from navi_core.service.wire.codec import TOPICS, WIRE_VERSION, decode, encode, topic_of
from navi_core.service.wire.messages import (
    MOST_STEP_ID,
    OVERHEAD_SHAPE,
    Action,
    BatchStepRequest,
    BatchStepResult,
    DescribeRequest,
    Description,
    DistanceMatrix,
    Fault,
    Message,
    RobotPose,
    StepRequest,
    StepResult,
    TelemetryEvent,
)

__all__ = [
    "MOST_STEP_ID",
    "OVERHEAD_SHAPE",
    "TOPICS",
    "WIRE_VERSION",
    "Action",
    "BatchStepRequest",
    "BatchStepResult",
    "DescribeRequest",
    "Description",
    "DistanceMatrix",
    "Fault",
    "Message",
    "RobotPose",
    "StepRequest",
    "StepResult",
    "TelemetryEvent",
    "decode",
    "encode",
    "topic_of",
]
