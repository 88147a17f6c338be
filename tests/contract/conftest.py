"""Fixtures of the contract's tests."""

from tiny_host import host  # noqa: F401 - a fixture
