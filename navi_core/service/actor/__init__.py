"""Actor server: a policy that answers observations."""
