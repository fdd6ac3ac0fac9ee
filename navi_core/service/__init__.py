"""The service: servers and clients of the wire, the gate, and training that goes on in flight."""

from __future__ import annotations
