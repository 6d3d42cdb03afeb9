"""Re-routing a dead worker's micro-batches to its peers: SlipStream / ReCycle."""
