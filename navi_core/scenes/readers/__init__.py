"""Mesh file readers: glTF, OBJ, PLY, STL, COLLADA, Gazebo worlds, Habitat scene instances, annotated scans."""
