"""Coverage-guided fuzzing of everything that Navi reads from outside."""
