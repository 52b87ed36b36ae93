"""Mode `closure`: loss and gradient over all data, the same to the bit on every member."""
