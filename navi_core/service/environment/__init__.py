"""Environment server: drones that fly what actors send."""
