"""The other process of a node: the link to its daemon, and the built-in numpy trainer that is written on
it."""
