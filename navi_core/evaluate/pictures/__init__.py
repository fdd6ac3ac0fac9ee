"""Maps and traces of evaluated flights."""
