"""Every decision of replication, pure: no sockets, no clock, no randomness. Start reading at replica.py."""
