"""Ports of loopback that nobody listens on just now, and that no outgoing connection is given."""

from __future__ import annotations

from p2psgd.cli.local.cluster import free_ports

__all__ = ["free_ports"]
