"""Online learning in service: experience, continuous training, admission of policy versions."""
