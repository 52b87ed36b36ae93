"""`p2psgd train`: the built-in trainer, its recipes and its data sets."""
