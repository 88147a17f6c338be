"""Fixtures of the contract's tests."""

from seam_host import host  # noqa: F401 - a fixture
