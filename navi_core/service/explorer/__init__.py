"""The explorer: a person flies through scenes and records demonstrations."""
