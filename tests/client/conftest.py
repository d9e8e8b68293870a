"""A broker for the whole session, and for tests with the marker `java` an Apache Kafka with TLS and SASL beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.client import Cluster
from ottla.testing import Broker
from support.secured import Secured, open_secured


@pytest.fixture(scope="session")
def ottla_server() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with open_secured(tmp_path_factory.mktemp("apache")) as kafka:
        yield kafka


@pytest.fixture(params=["ottla", pytest.param("apache", marks=pytest.mark.java)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The client's view of each kind of broker in turn."""
    if request.param == "ottla":
        bootstrap = request.getfixturevalue("ottla_server").bootstrap_servers
    else:
        bootstrap = request.getfixturevalue("apache").plaintext
    with Cluster(bootstrap) as connected:
        yield connected
