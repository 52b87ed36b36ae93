"""Mutual TLS between the nodes of a run: its certificate authority, a node's certificate and key, and the
sessions that are made with them.
"""
