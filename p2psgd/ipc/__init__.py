"""The memory and the control socket between a node's two processes, the daemon and its trainer."""
