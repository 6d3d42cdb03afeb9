"""What a job does when workers fail, join or slow down, replayed or for real: our policy, the papers' and baselines."""
