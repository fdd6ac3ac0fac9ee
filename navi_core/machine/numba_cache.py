"""A place for the code that numba compiles.

It keeps it in the installation, else in the user's cache, and ends every import where it may write to neither: a user
without a home whose Navi belongs to another, as in many containers. Such a process gets a folder of its own.
"""

import os
from pathlib import Path


def keep_compiled_code() -> None:
    """Set NUMBA_CACHE_DIR to a folder that ends with this process, where numba could keep nothing elsewhere.

    Processes that this one starts share it. To be called before a module with numba's functions is imported.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = os.environ.get("NUMBA_CACHE_DIR")
    if any(map(_may_write, filter(None, (named, str(Path(__file__).parents[1]), home)))):
        return
    import atexit
    import logging
    import sys
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="navi-numba-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    os.environ["NUMBA_CACHE_DIR"] = folder.name
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()
    logging.getLogger(__name__).warning(
        "numba compiles for this process alone: %s cannot be written; set XDG_CACHE_HOME to a folder that can", home
    )


def _may_write(name: str) -> bool:
    """Return whether a folder may be written to, or made; one of a home that is not known may not."""
    folder = Path(name)
    if name.startswith("~"):
        return False
    # os.path: a folder that is closed to this user is none to it, where a Path raises.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
