"""Environment server: serves simulated drones that execute the actors' commands."""
