"""What the benches of the ring mode have in common: hosts, processes that start together, what they run."""
