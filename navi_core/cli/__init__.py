"""The `navi` command and its groups."""
