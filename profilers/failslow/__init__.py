"""Fail-slow: who, and which link, takes longer than it should while all of them live."""
