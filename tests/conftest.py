"""What holds for every test: property tests draw the same examples each time, and no clock judges them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from support.apiserver import api_namespace, apiserver, build_before

__all__ = ["api_namespace", "apiserver"]

settings.register_profile("steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Builds Kubernetes before the first test that needs it."""
    build_before(item)
