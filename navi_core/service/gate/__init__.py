"""Safety gate: proposed motions simulated before they are sent."""
