"""Tables, progress bars and JSON on a terminal."""
