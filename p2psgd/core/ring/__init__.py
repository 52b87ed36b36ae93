"""Lock-step rounds over a ring of the view's members: when a ring is formed, and what a round does."""
