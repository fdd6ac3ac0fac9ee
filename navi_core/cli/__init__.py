"""Command-line interface: the `navi` command and its command groups (Typer)."""
