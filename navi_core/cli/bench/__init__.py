"""`navi bench …`: one module per subject."""
