"""Knowing what goes on: the status as data, as text and as a live table."""
