"""Audit of the installed dependencies: their known faults, by pip-audit, which asks the package index."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

from navi_core.errors import ConfigError, ServiceError, install_command, printable

_COMMAND = (sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off")


def audit_dependencies() -> dict[str, Any]:
    """Ask for the known faults of the packages of this environment.

    Returns:
        `audited` (number of packages), `skipped` (names that the index does not know), and `faults`: rows of `package`,
        `version`, `fault` (its id), `fixed_in`.

    Raises:
        ConfigError: pip-audit is not installed.
        ServiceError: It could not ask about any package.
    """
    if importlib.util.find_spec("pip_audit") is None:
        raise ConfigError(f"pip-audit is not installed; next: {install_command('audit')}")
    done = subprocess.run(_COMMAND, capture_output=True, text=True)
    try:
        rows = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise ServiceError(
            f"the audit failed: {printable(last)[:300]}; next: check the network, and try again"
        ) from None
    faults = [
        {
            "package": row["name"],
            "version": row["version"],
            "fault": one["id"],
            "fixed_in": ", ".join(one["fix_versions"]),
        }
        for row in rows
        for one in row.get("vulns", ())
    ]
    skipped = [row["name"] for row in rows if "skip_reason" in row]
    if len(skipped) == len(rows):
        raise ServiceError("the audit knows none of the packages: the package index answers nothing about them")
    return {"audited": len(rows) - len(skipped), "skipped": skipped, "faults": faults}
