"""`p2psgd up` and `p2psgd down`: nodes as services on machines that are reached by ssh."""
