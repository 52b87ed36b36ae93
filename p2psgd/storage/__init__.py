"""The files that a node keeps so that a restart, or a power cut of all nodes, loses nothing: checkpoints, its
own updates since the last one, and its votes. Files only: no event loop, no network.
"""
