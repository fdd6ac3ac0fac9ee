"""Served policies: model loading, batched inference, sessions with recurrent state."""
