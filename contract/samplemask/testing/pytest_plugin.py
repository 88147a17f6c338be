"""pytest fixtures of the test kit; loaded by pytest itself wherever samplemask is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    line = "samplemask_batch(**options): options of grpo_batch for the fixture of the same name"
    config.addinivalue_line("markers", line)


@pytest.fixture
def samplemask_check() -> Callable[..., Any]:
    """Return `check_estimator` that raises its report when a property does not hold."""
    from samplemask.testing import Report, check_estimator

    def check(*args: Any, **options: Any) -> Report:
        report = check_estimator(*args, **options)
        report.raise_if_failed()
        return report

    return check


@pytest.fixture
def samplemask_batch(request: pytest.FixtureRequest) -> Any:
    """Return a synthetic batch, made with the options of the marker `samplemask_batch`."""
    from samplemask.testing import grpo_batch

    marker = request.node.get_closest_marker("samplemask_batch")
    return grpo_batch(*marker.args, **marker.kwargs) if marker else grpo_batch()


@pytest.fixture
def samplemask_verdict() -> Callable[..., Any]:
    """Return `check_response`: the verdict of a verify response, refused where it could be misread."""
    from samplemask.testing.responses import check_response

    return check_response
