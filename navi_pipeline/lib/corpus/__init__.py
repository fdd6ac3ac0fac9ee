"""Scene corpus and demonstration datasets of the pipeline."""
