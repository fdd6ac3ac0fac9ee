"""Builders of small COLLADA files and Gazebo packages, written out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.conftest import box_triangles

CUBE = box_triangles((-50, -50, -50), (50, 50, 50))
"""A cube of one metre in centimetres."""


def geometry(key: str, triangles: np.ndarray = CUBE, material: str = "wood") -> str:
    """Return a <geometry> of loose triangles (F, 3, 3) with normals beside the positions."""
    points = np.asarray(triangles, float).reshape(-1, 3)
    indices = " ".join(f"{i} 0" for i in range(len(points)))
    return f"""<geometry id="{key}" name="{key} mesh"><mesh>
<source id="{key}-p"><float_array id="{key}-a" count="{points.size}">{" ".join(map(repr, points.ravel().tolist()))}
</float_array><technique_common><accessor source="#{key}-a" count="{len(points)}" stride="3">
<param name="X" type="float"/><param name="Y" type="float"/><param name="Z" type="float"/></accessor>
</technique_common></source>
<source id="{key}-n"><float_array id="{key}-na" count="3">0 0 1</float_array></source>
<vertices id="{key}-v"><input semantic="POSITION" source="#{key}-p"/></vertices>
<triangles count="{len(points) // 3}" material="{material}">
<input semantic="VERTEX" source="#{key}-v" offset="0"/><input semantic="NORMAL" source="#{key}-n" offset="1"/>
<p>{indices}</p></triangles></mesh></geometry>"""


def collada(
    nodes: str = '<node name="crate"><instance_geometry url="#cube"/></node>',
    geometries: str | None = None,
    *,
    unit: str = "0.01",
    up: str = "Z_UP",
    more: str = "",
) -> str:
    """Return a COLLADA document in centimetres."""
    return f"""<?xml version="1.0" encoding="utf-8"?>
<COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
<asset><unit name="centimeter" meter="{unit}"/><up_axis>{up}</up_axis></asset>
<library_materials><material id="wood" name="oak wood"/></library_materials>{more}
<library_geometries>{geometry("cube") if geometries is None else geometries}</library_geometries>
<library_visual_scenes><visual_scene id="Scene">{nodes}</visual_scene></library_visual_scenes>
<scene><instance_visual_scene url="#Scene"/></scene></COLLADA>"""


def visual(shape: str, pose: str = "", more: str = "") -> str:
    """Return a link with one visual."""
    placed = f"<pose>{pose}</pose>" if pose else ""
    return f"<link name='link'><visual name='v'>{placed}<geometry>{shape}</geometry>{more}</visual></link>"


MESH = "<mesh><uri>model://crate/meshes/crate.dae</uri></mesh>"
BOX = "<box><size>1 2 3</size></box>"


def package(folder: Path, world: str, name: str = "shop.world", **models: str) -> Path:
    """Write a package with a world and models (contents of their <model>), beside the model `crate`; returns the world.

    The crate is a cube of one metre, its mesh in centimetres.
    """
    models = {"crate": visual(MESH)} | models
    for key, content in models.items():
        place = folder / "models" / key
        (place / "meshes").mkdir(parents=True)
        (place / "model.sdf").write_text(f"<sdf version='1.6'><model name='{key}'>{content}</model></sdf>")
        (place / "model.config").write_text(
            f"<model><name>{key}</name><sdf version='1.6'>model.sdf</sdf><author><name>N</name></author></model>"
        )
    (folder / "models" / "crate" / "meshes" / "crate.dae").write_text(collada())
    file = folder / "worlds" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"<?xml version='1.0'?><sdf version='1.6'><world name='default'>{world}</world></sdf>")
    return file


def include(name: str, pose: str = "", more: str = "") -> str:
    """Return an <include> of a model of the package."""
    placed = f"<pose>{pose}</pose>" if pose else ""
    return f"<include><uri>model://{name}</uri>{placed}{more}</include>"
