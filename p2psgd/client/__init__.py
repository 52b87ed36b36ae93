"""The library that training scripts use: the link to their node's daemon."""
