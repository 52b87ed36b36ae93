"""Observing a node: its status, its logs and its records, as data and as text."""
