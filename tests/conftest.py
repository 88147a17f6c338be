"""Hypothesis without deadlines: a loaded machine must not fail a test."""

from hypothesis import settings

settings.register_profile("samplemask", deadline=None)
settings.load_profile("samplemask")
