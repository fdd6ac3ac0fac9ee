"""Automation: nights, sensors, freshness policies."""

from navi_pipeline.defs.automation.definitions import definitions, with_freshness

__all__ = ["definitions", "with_freshness"]
