"""Parameter sweeps: one factor varies, each cell runs in a child process, and a failed cell does not stop the rest."""
