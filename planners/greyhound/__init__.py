"""Greyhound: what to do about what is slow."""
