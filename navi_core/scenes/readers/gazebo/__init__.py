"""Gazebo worlds and SDF models as meshes."""
