"""One Spark for the whole session (local, two cores), a broker of ours, and an Apache Kafka for tests that are told twice."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.client import Cluster
from support import java
from support.secured import Secured, open_secured
from support.server import ServerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder needs Java and takes its time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.slow)


def open_session(warehouse: str, master: str = "local[2]", **conf: str) -> SparkSession:
    """A session as small as tests need it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("ottla-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": warehouse,
        "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.log.level": "ERROR",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = open_session(str(tmp_path_factory.mktemp("warehouse")))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    assert java.missing() is None
    with open_secured(tmp_path_factory.mktemp("apache")) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def apache(secured: Secured) -> str:
    """The same, openly."""
    return secured.plaintext


@pytest.fixture
def bootstrap(server: ServerProcess) -> str:
    return server.bootstrap_servers


@pytest.fixture(params=["ottla", "apache"])
def either(request: pytest.FixtureRequest) -> str:
    """Each kind of broker in turn."""
    name = "server" if request.param == "ottla" else "apache"
    found = request.getfixturevalue(name)
    return found.bootstrap_servers if isinstance(found, ServerProcess) else str(found)


@pytest.fixture
def open_cluster() -> Iterator[Callable[[str], Cluster]]:
    clusters: list[Cluster] = []

    def connect(address: str) -> Cluster:
        clusters.append(Cluster(address))
        return clusters[-1]

    yield connect
    for one in clusters:
        one.close()


@pytest.fixture
def cluster(bootstrap: str, open_cluster: Callable[[str], Cluster]) -> Cluster:
    return open_cluster(bootstrap)
