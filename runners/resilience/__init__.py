"""Training that survives: membership, epochs and commit votes, without torch."""
