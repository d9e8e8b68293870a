"""A broker process per module: what one family of tests does to it, the next must not feel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from robustness.health import Patient
from support.server import ServerProcess


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    directory = tmp_path_factory.mktemp("robust") / "data"
    settings = {"log.segment.bytes": 4 << 20, "log.segment.delete.delay.ms": 0}
    with ServerProcess(str(directory), settings) as server:
        yield Patient(server)
        server.stop()
