"""Live viewing: telemetry broadcast of a training, discovery of publishers, and the viewers' display state."""
