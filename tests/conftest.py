"""Hypothesis, tuned for every machine alike: the same examples each time, no clock in them, a moderate number."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rtk",
    derandomize=True,
    deadline=None,
    max_examples=30,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("rtk")
