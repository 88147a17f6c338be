"""Hypothesis without deadlines: a loaded machine must not fail a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("samplemask", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("samplemask")
