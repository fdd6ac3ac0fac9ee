"""Flights in 3-D for reports: the page's own view with scene and paths embedded, for a file without a server."""

import base64
import json
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from navi_core.service.viewing.meshes import stored_mesh
from navi_pipeline.lib.records import read_document

_STATIC = Path(__file__).parents[3] / "navi_core/service/web/static"
_SCRIPTS = ("colour", "net", "points", "scene3d", "view3d_camera", "view3d_overlay", "view3d_input", "view3d")
"""Modules of the view, each behind those that it imports."""
_MOST_BYTES = 1_500_000
"""Meshes of a report, compressed; beyond it fewer scenes are shown."""
_START = """
for (const host of document.querySelectorAll("[data-flights]")) {
  const text = atob(document.getElementById(host.dataset.flights).textContent);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(plain).arrayBuffer().then((data) => {
    const view = createView3d(host, { mode: "orbit", rays: false });
    view.mesh(unpack(data));
    view.flights(JSON.parse(host.dataset.paths));
  });
}
"""


def flights_in_3d(home: Path, most: int = 2) -> list[str]:
    """Render the flights of the newest evaluation in 3-D; empty where its scenes or paths are not stored.

    Args:
        home: Navi home.
        most: Scenes shown.
    """
    files = sorted((home / "evaluations").glob("*.maps.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        flights = read_document(file, made_by="policy_evaluation").get("flights", [])
        if parts := _views(flights[:most]):
            return [*parts, f"<style>{(_STATIC / 'view3d.css').read_text()}</style>", _script()]
    return []


def _views(flights: list[dict[str, Any]]) -> list[str]:
    parts, size = [], 0
    for number, flight in enumerate(flights):
        mesh = stored_mesh(str(flight["mesh"]))
        if mesh is None or size + len(mesh) > _MOST_BYTES:
            continue
        size += len(mesh)
        data = f'<script type="application/octet-stream" id="mesh-{number}">{base64.b64encode(mesh).decode()}</script>'
        paths = escape(json.dumps(flight["paths"]), quote=True)
        title = f"<h3>{escape(str(flight['scene']))}</h3>"
        parts.append(f'{title}{data}<div class="flights-3d" data-flights="mesh-{number}" data-paths="{paths}"></div>')
    return parts


@cache
def _script() -> str:
    """Return the view's modules as one script: their imports and exports are taken out."""
    text = "".join((_STATIC / f"{name}.js").read_text() for name in _SCRIPTS)
    plain = re.sub(r"^import .*?;$|^export \{.*?\};$|^export (?=\w)", "", text, flags=re.MULTILINE)
    return f'<script type="module">\n{plain}\n{_START}</script>'
