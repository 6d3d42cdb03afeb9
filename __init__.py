"""rtk plans, simulates and runs large-model training that keeps going when workers fail or slow down."""

__version__ = "0.1.0"
