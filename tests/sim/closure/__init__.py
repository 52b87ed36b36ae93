"""The family of seeds in mode `closure`."""
