"""The pretraining stage."""
