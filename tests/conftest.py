"""The simulation's search is a third of the suite's time: it begins with the first test and is asked for by its own."""

import pytest

from tests.test_simulation import SEARCH, test_no_schedule_breaks_a_guarantee

MANY = 500
"""Tests, from which on it is the whole suite."""


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any(item.name == test_no_schedule_breaks_a_guarantee.__name__ for item in session.items)
    if wanted and len(session.items) >= MANY and not session.config.option.collectonly:
        SEARCH.begin()


def pytest_sessionfinish() -> None:
    SEARCH.end()
