"""A test that names `client` is run with each of the Python clients."""

from __future__ import annotations

import confluent_kafka
import confluent_kafka.admin
import pytest

from clients.adapters import CLIENTS, Client
from support.server import ServerProcess


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the Python clients in turn."""
    chosen: Client = request.param
    return chosen


@pytest.fixture(scope="session")
def admin(server: ServerProcess) -> confluent_kafka.admin.AdminClient:
    """An admin client for what a test needs beside its subject."""
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})


class Topics:
    """Creates topics and waits until they are there."""

    def __init__(self, admin: confluent_kafka.admin.AdminClient) -> None:
        self._admin = admin

    def create(self, name: str, partitions: int = 1, **config: str) -> str:
        """A topic; settings with underscores for dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = confluent_kafka.admin.NewTopic(name, partitions, 1, config=settings)
        self._admin.create_topics([new])[name].result(20)
        return name

    def create_if_missing(self, name: str) -> None:
        """A topic, unless somebody was faster."""
        try:
            self.create(name)
        except confluent_kafka.KafkaException as problem:
            if problem.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise


@pytest.fixture
def topics(admin: confluent_kafka.admin.AdminClient) -> Topics:
    return Topics(admin)
