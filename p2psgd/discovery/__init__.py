"""Where peers are: a static list of hosts."""
