"""CLI commands of the pipeline, registered through the entry point group `navi.commands`."""

from navi_pipeline.cli.commands import register

__all__ = ["register"]
