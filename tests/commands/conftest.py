"""Two clusters for the session: three brokers of Ottla, and one of Apache Kafka; and one broker of Ottla as a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("commands.side", "commands.both")

from commands.both import Place  # noqa: E402 - its asserts are to be shown in full
from commands.side import Side  # noqa: E402
from ottla.testing import Cluster  # noqa: E402
from support.anchor import open_apache  # noqa: E402
from support.kafka import ApacheKafka, ZooKeeper  # noqa: E402
from support.server import ServerProcess  # noqa: E402


@pytest.fixture(scope="session")
def ottla_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with Cluster(3) as cluster:
        yield Side(cluster.bootstrap_servers, [1, 2, 3], tmp_path_factory.mktemp("ottla"))


@pytest.fixture(scope="session")
def apache_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    place = tmp_path_factory.mktemp("apache")
    directories = {"log.dirs": f"{place / 'one'},{place / 'two'}"}
    with ZooKeeper(str(place)) as zookeeper, ApacheKafka(str(place), zookeeper, directories) as kafka:
        yield Side(kafka.bootstrap_servers, [0], place)


@pytest.fixture(params=["ottla", pytest.param("apache", marks=pytest.mark.slow)])
def side(request: pytest.FixtureRequest) -> Side:
    found: Side = request.getfixturevalue(f"{request.param}_side")
    return found


@pytest.fixture(scope="session")
def ottla(server: ServerProcess) -> Place:
    return Place(server.bootstrap_servers)


@pytest.fixture(scope="session")
def three(ottla_side: Side) -> Place:
    """Three brokers of Ottla."""
    return Place(ottla_side.servers)


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Another one than above: tests of settings leave quotas behind that nobody could produce under."""
    with open_apache(str(tmp_path_factory.mktemp("apache-data"))) as broker:
        yield Place(broker.bootstrap_servers)


@pytest.fixture(params=["ottla", pytest.param("apache", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Place:
    """Each of both in turn."""
    chosen: Place = request.getfixturevalue(request.param)
    return chosen
