"""Service page: its message with sessions, latency curves, gate and versions, and the status pages that it reads."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from navi_core.errors import ConfigError
from navi_core.service.viewing.digest import Digest

_PARTS = {"actor.inference.perf": "policy, per batch of decisions", "environment.sdfdag.perf": "environment, per step"}
"""Event type of each latency chart, with its title."""
_QUANTILES = ("p50_ms", "p99_ms")
_MAX_STATUS_BYTES = 1 << 20
_VERSIONS = ("model", "serving_version", "training.model_version")
"""Facts of a status page that name versions."""


def service_message(digest: Digest, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the service message of a page.

    Args:
        digest: State of the page.
        groups: Facts of each status page, by its address.
    """
    sessions = digest.recent_sessions()
    return {
        "sessions": sessions,
        "latency": [
            {
                "title": title,
                "steps": curve.steps,
                "series": {name: curve.series[name] for name in ("p50_ms", "p99_ms")},
            }
            for kind, title in _PARTS.items()
            if (curve := digest.latency.get(kind)) is not None
        ],
        "gate": _gate(digest, groups),
        "versions": {name: value for facts in groups.values() for name, value in facts.items() if name in _VERSIONS},
        "groups": {
            **{title: {k: v for k, v in facts.items() if k not in _VERSIONS} for title, facts in groups.items()},
            **{name: values for name, values in digest.recent_others().items() if name not in _PARTS},
        },
        "summary": f"{len(sessions)} sessions" if sessions else "",
    }


def service_title(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the title of the service page: the model that a status page names."""
    models = [str(facts["model"]) for facts in groups.values() if "model" in facts]
    return f"Service of {models[0]}" if models else "Service"


def _gate(digest: Digest, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, float] | None:
    """Return what the gate did with motions: counters of a status page, else those heard; None without a gate."""
    for facts in groups.values():
        if "metrics.gate_send_total" in facts:
            sent, slowed = (float(facts.get(f"metrics.gate_{name}_total", 0)) for name in ("send", "slowed"))
            held = float(facts.get("metrics.gate_wait_total", 0))
            return {"sent unchanged": sent - slowed, "slowed": slowed, "held back": held}
    return {"sent": float(digest.gate[True]), "held back": float(digest.gate[False])} if digest.gate else None


def status_page(address: str) -> str:
    """Return the address of a status page without its last slash.

    Raises:
        ConfigError: It is none.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{address[:80]!r} is no address of a status page; write for instance http://127.0.0.1:9100")
    return address.rstrip("/")


def status_of(address: str) -> dict[str, Any]:
    """Fetch a server's /status JSON and flatten it to at most 64 numbers and texts by dotted key."""
    try:
        with urllib.request.urlopen(f"{address}/status", timeout=1.0) as answer:
            data = json.loads(answer.read(_MAX_STATUS_BYTES))
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return {"status": f"no answer ({getattr(reason, 'strerror', None) or reason})"[:120]}
    return dict(list(_flat(data))[:64]) if isinstance(data, dict) else {"status": "no JSON object"}


def _flat(data: dict[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in data.items():
        if isinstance(value, dict) and depth < 3:
            rows += _flat(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, int | float | str):
            rows.append((f"{prefix}{name}"[:80], value if not isinstance(value, str) else value[:120]))
    return rows
