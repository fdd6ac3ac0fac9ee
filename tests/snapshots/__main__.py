"""Collect, compare or write the snapshots of `tests.snapshots.interfaces`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.snapshots.interfaces import INTERFACES

FOLDER = Path(__file__).parent


def as_text(content: object) -> str:
    """Return a snapshot as its file has it: sorted, one value a line."""
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Run one of the modes: compare (default), `--write`, `--print`; on the named interfaces, by default all."""
    named = [argument for argument in arguments if not argument.startswith("--")] or [*INTERFACES]
    found = {name: as_text(INTERFACES[name]()) for name in named}
    if "--print" in arguments:
        print(json.dumps(found))  # noqa: T201
        return 0
    files = {name: FOLDER / f"{name}.json" for name in found}
    changed = [name for name, text in found.items() if not files[name].is_file() or files[name].read_text() != text]
    if "--write" in arguments:
        for name in changed:
            files[name].write_text(found[name])
    print("changed:", ", ".join(changed) or "nothing")  # noqa: T201
    return int(bool(changed) and "--write" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
