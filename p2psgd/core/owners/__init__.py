"""Owners: each member of the view adds up what all others contribute to its own range of the weights."""
