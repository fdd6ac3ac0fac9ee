"""What the assets share: warehouse, trainer client, pictures."""
