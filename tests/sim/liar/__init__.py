"""The second family of seeds: ring mode, in the same world as the first."""
