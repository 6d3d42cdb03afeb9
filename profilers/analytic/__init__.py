"""Profiles by calculation: what a model would cost on a GPU that nobody here has."""
