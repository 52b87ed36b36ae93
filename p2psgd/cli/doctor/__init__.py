"""`p2psgd doctor`: finds what would keep this machine from a run, before the run, and names the remedy."""
