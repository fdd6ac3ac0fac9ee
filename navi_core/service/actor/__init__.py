"""Actor server: serves a policy that answers observations with actions."""
