"""Fixtures that several folders use, and the rule that nothing is skipped in CI."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator
from typing import TypeVar

import pytest

from support import java
from support.server import ServerProcess

_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test with the marker `java` is skipped where Java or the jars are not here, and says so."""
    reason = java.missing()
    if reason is not None:
        for item in items:
            if item.get_closest_marker("java") is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI all that tests need is there: a skip would hide that it is not."""
    report = yield
    return _no_skip_in_ci(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that skips itself."""
    report = yield
    return _no_skip_in_ci(report)


def _no_skip_in_ci(report: _Report) -> _Report:
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {reason}"
    return report


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A broker process for the whole session; tests keep apart by their topics and groups."""
    directory = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(str(directory)) as process:
        yield process
        assert process.process is not None
        assert process.process.poll() is None, f"the broker died:\n{process.log()}"
        assert "Traceback" not in process.log(), process.log()
        assert process.stop() == 0


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; nothing is created yet."""
    return f"t-{uuid.uuid4().hex[:12]}"
