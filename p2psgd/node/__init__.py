"""The daemon: one node of a run, from its start to its end."""
