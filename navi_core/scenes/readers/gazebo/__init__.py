"""Reader of Gazebo worlds and SDF models as triangle meshes."""
