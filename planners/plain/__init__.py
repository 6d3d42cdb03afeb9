"""The planners with plain arguments, for Python and for the commands alike."""
