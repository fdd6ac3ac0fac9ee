"""Parts of a user's own: what a test registers is forgotten behind it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from navi_core.config import registry as plugin_loader
from navi_core.config.registry import Parts

__all__ = ["forgotten"]


def forgotten(monkeypatch: pytest.MonkeyPatch, *tables: Parts[Any]) -> Iterator[None]:
    """Leave no name in some tables and no module `my_…` of a test behind; the body of a fixture."""
    monkeypatch.delenv("NAVI_PLUGINS", raising=False)
    monkeypatch.setattr(plugin_loader, "_LOADED", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    for parts in tables:
        monkeypatch.setattr(parts.names, "_custom", [])
        monkeypatch.setattr(parts, "_builders", dict(parts._builders))
        monkeypatch.setattr(parts, "_sources", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]
