"""The simulator: real replicas under a virtual clock and a virtual network, one seed = one run.

What is real: `Replica`, codec, frames, messages, greeting rules. What is made up: time, sockets, processes,
trainers. See README.md for what is checked, and `python -m tests.sim --help`.
"""
