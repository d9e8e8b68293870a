"""Fixtures that are there as soon as Ottla is installed: `ottla_broker` and `ottla_cluster` for the session, `ottla_topic` for
one test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.testing import Broker, Cluster


@pytest.fixture(scope="session")
def ottla_broker() -> Iterator[Broker]:
    """A real broker, started once for the whole test session."""
    from ottla.testing import Broker  # noqa: PLC0415 - a session that does not use the fixture should not pay for it

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def ottla_cluster() -> Iterator[Cluster]:
    """A real cluster of three brokers, started once for the whole test session."""
    from ottla.testing import Cluster  # noqa: PLC0415 - as above

    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def ottla_topic(ottla_broker: Broker) -> Iterator[str]:
    """The name of a new topic with one partition, deleted after the test."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    ottla_broker.create_topic(name)
    yield name
    ottla_broker.delete_topic(name)
