"""Dead workers, slow workers and slow links in one schedule."""
