"""Mesh readers: glTF, OBJ, PLY, STL, COLLADA, annotated scans."""
