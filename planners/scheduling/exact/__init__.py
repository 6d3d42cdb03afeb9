"""Exact solvers behind one Protocol: they polish what list scheduling leaves open."""
