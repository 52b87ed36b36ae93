"""The fourth family of seeds: mode `owners`, in the same world as the first."""
