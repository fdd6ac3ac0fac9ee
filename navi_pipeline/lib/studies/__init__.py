"""Hyperparameter studies (Optuna) whose trials are training runs; a crashed study resumes."""
