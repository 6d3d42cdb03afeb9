"""Lower bounds on what any orders can reach, with their proofs."""
