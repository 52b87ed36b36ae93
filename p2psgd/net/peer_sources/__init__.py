"""Sources of peers' addresses: what --peers may name, a file for each, and those of other packages."""
