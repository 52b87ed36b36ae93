"""What a training script uses: the link to its node's daemon."""
