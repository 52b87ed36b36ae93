"""Share what the benches of the ring mode need: hosts, processes that start together, what they run."""
