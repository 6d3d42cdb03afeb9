"""The classic pipeline schedules."""
