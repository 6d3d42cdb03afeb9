"""Profiles out of models and machines."""
