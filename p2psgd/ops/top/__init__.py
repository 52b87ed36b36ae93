"""`p2psgd top`: one node's status, asked again and again and drawn on a whole terminal."""
