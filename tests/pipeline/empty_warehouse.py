"""An empty warehouse that is made once a process and copied into homes: making one takes half a second."""

import functools
import shutil
import tempfile
from pathlib import Path

from navi_pipeline.lib.warehouse.warehouse import Warehouse


@functools.cache
def _made() -> tuple[tempfile.TemporaryDirectory, Path]:
    folder = tempfile.TemporaryDirectory(prefix="navi-warehouse-")
    warehouse = Warehouse(folder.name)
    warehouse.ingest()
    return folder, warehouse.folder


def start_warehouse(home: Path) -> Path:
    """Copy the empty warehouse into a home, as the home's first ingest would leave it, and return the home."""
    shutil.copytree(_made()[1], home / "warehouse")
    return home
