"""Learning in service: experience, continuous training, admission of versions."""
