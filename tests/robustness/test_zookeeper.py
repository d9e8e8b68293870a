"""One broker over a real ZooKeeper: killed, paused past its session, cut off from it, and refused where it may not be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from robustness.raw import wait_until
from support.kafka import ApacheKafka
from support.server import ServerProcess, free_port
from support.zookeeper import SESSION_MS, QuickZooKeeper, looking_at

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuickZooKeeper]:
    with QuickZooKeeper(str(tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server


def broker(zookeeper: QuickZooKeeper, directory: Path, **settings: object) -> ServerProcess:
    """A broker with a root of its own in the shared ZooKeeper."""
    return ServerProcess(
        str(directory / "data"),
        {
            "zookeeper.connect": f"{zookeeper.address}/{directory.name}",
            "zookeeper.session.timeout.ms": SESSION_MS,
            **{key.replace("_", "."): value for key, value in settings.items()},
        },
    )


@pytest.fixture
def server(zookeeper: QuickZooKeeper, tmp_path: Path) -> Iterator[ServerProcess]:
    with broker(zookeeper, tmp_path) as running:
        yield running
        assert "Traceback" not in running.log(), running.log()


def admin_of(server: ServerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 100})


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)


def works(attempt: Callable[[], None]) -> bool:
    """Whether it works by now; the only error allowed until then is one that clients try again after."""
    try:
        attempt()
    except KafkaException as problem:
        if problem.args[0].code() != KafkaError.REQUEST_TIMED_OUT:
            raise
        return False
    return True


def write(server: ServerProcess, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def read(server: ServerProcess, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    end = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < end, found
        found += [message.value() for message in consumer.consume(count, 0.1)]
    consumer.close()
    return found


def test_after_kill_9_it_waits_for_its_old_session_and_has_its_topics(server: ServerProcess, zookeeper: QuickZooKeeper) -> None:
    admin = admin_of(server)
    create(admin, "kept", 3, **{"retention.ms": "123456"})
    create(admin, "gone")
    admin.delete_topics(["gone"])["gone"].result(30)
    write(server, "kept", [b"before"])
    root = f"/{Path(server.directory).parent.name}"
    with looking_at(zookeeper, root) as client:
        epoch = client.get("/brokers/ids/1001")[1].czxid
        server.kill()
        server.start()
        assert "waiting up to" in server.log()
        assert client.get("/brokers/ids/1001")[1].czxid > epoch
        assert client.get("/controller_epoch")[0] == b"2"
    assert set(admin.list_topics(timeout=10).topics) == {"kept"}
    resource = ConfigResource(ConfigResource.Type.TOPIC, "kept")
    described = admin.describe_configs([resource])[resource].result(30)
    assert described["retention.ms"].value == "123456"
    assert server.stop() == 0
    with looking_at(zookeeper, root) as client:
        assert client.get_children("/brokers/ids") == [], "a clean stop leaves at once"
        assert client.exists("/controller") is None


def test_a_clean_restart_does_not_wait(server: ServerProcess) -> None:
    create(admin_of(server), "t")
    assert server.stop() == 0
    server.start()
    assert "waiting up to" not in server.log()
    assert "taken over" not in server.log()
    write(server, "t", [b"x"])


def test_zookeeper_away_stops_changes_and_not_traffic(tmp_path: Path) -> None:
    with QuickZooKeeper(str(tmp_path / "zookeeper")) as zookeeper:
        server = broker(zookeeper, tmp_path, zookeeper_session_timeout_ms=60_000)
        with server:
            admin = admin_of(server)
            create(admin, "t")
            write(server, "t", [b"0"])
            zookeeper.stop()
            wait_until(lambda: "is lost: clients are served on" in server.log(), 30)
            write(server, "t", [b"1", b"2"])
            assert read(server, "t", 3) == [b"0", b"1", b"2"]
            with pytest.raises(KafkaException) as refusal:
                create(admin, "later")
            assert refusal.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
            assert "ZooKeeper" in refusal.value.args[0].str()
            with pytest.raises(KafkaException):
                admin.delete_topics(["t"])["t"].result(30)
            write(server, "t", [b"3"])
            zookeeper.start()
            wait_until(lambda: works(lambda: create(admin, "later")), 30)
            write(server, "later", [b"x"])
            assert read(server, "t", 4)[-1] == b"3", "nothing of the refused deletion happened"
            assert "is back after" in server.log()
            zookeeper.stop()
            wait_until(lambda: server.log().count("is lost: clients are served on") == 2, 30)
            assert server.stop() == 0, "a stop does not wait for it"
        assert "Traceback" not in server.log()


def test_a_session_that_expired_is_followed_by_a_new_registration(server: ServerProcess, zookeeper: QuickZooKeeper) -> None:
    admin = admin_of(server)
    create(admin, "t")
    with looking_at(zookeeper, f"/{Path(server.directory).parent.name}") as client:
        before = client.get("/brokers/ids/1001")[1].czxid
        os.kill(server.pid, signal.SIGSTOP)
        wait_until(lambda: client.exists("/brokers/ids/1001") is None, 30)
        assert client.exists("/controller") is None
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: "Registered again: broker 1001" in server.log(), 30)
        assert client.get("/brokers/ids/1001")[1].czxid > before
        assert b'"brokerid":1001' in client.get("/controller")[0]
        assert client.get("/controller_epoch")[0] == b"2"
    assert "has ended our session" in server.log()
    create(admin, "u")
    write(server, "t", [b"1"])
    write(server, "u", [b"2"])
    assert read(server, "t", 1) + read(server, "u", 1) == [b"1", b"2"]


def test_a_change_by_somebody_else_is_seen(server: ServerProcess, zookeeper: QuickZooKeeper) -> None:
    admin = admin_of(server)
    create(admin, "t", **{"retention.ms": "1000"})

    def retention() -> str:
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t")
        found: str = admin.describe_configs([resource])[resource].result(30)["retention.ms"].value
        return found

    assert retention() == "1000"
    with looking_at(zookeeper, f"/{Path(server.directory).parent.name}") as client:
        for value in ("2000", "3000"):
            client.set("/config/topics/t", b'{"version":1,"config":{"retention.ms":"%s"}}' % value.encode())
            wait_until(lambda value=value: retention() == value, 30)


# ---- where it may not be -------------------------------------------------------------------------------------------------


def refusal(*overrides: str) -> str:
    """The one line that a failed start says."""
    command = [sys.executable, "-m", "ottla", "server", *(part for one in overrides for part in ("--override", one))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("[")]
    assert result.returncode == 1, result.stderr
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def settings(address: str, directory: Path, **more: object) -> list[str]:
    given = {
        "zookeeper.connect": address,
        "zookeeper.session.timeout.ms": SESSION_MS,
        "zookeeper.connection.timeout.ms": 1500,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": directory / "other",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return [f"{key}={value}" for key, value in given.items()]


def test_no_zookeeper(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    line = refusal(*settings(address, tmp_path))
    assert f"no ZooKeeper answers at zookeeper.connect={address} within 1.5 s" in line


def test_a_live_broker_with_our_id(server: ServerProcess, tmp_path: Path) -> None:
    line = refusal(*settings(str(server.settings["zookeeper.connect"]), tmp_path, broker_id=1001))
    assert "broker id 1001 is in use by another broker" in line
    assert f"127.0.0.1:{server.port}" in line


def test_without_kazoo(tmp_path: Path) -> None:
    """The package is an extra: without it one line says what to install."""
    code = (
        "import sys; sys.modules['kazoo'] = None; sys.argv = ['ottla', 'server', *sys.argv[1:]]; "
        "from ottla.cli import main; main()"
    )
    overrides = [part for one in settings("127.0.0.1:1", tmp_path) for part in ("--override", one)]
    result = subprocess.run([sys.executable, "-c", code, *overrides], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "pip install ottla[cluster]" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_apache_kafka_and_we_take_turns_over_one_zookeeper(zookeeper: QuickZooKeeper, tmp_path: Path) -> None:
    """Topics that Apache Kafka made are ours with their settings, and the other way round, over the same data."""
    root = f"{zookeeper.address}/{tmp_path.name}"
    apache = ApacheKafka(str(tmp_path), zookeeper, {"zookeeper.connect": root, "broker.id": 7})
    ours = ServerProcess(
        apache.log_dir, {"zookeeper.connect": root, "zookeeper.session.timeout.ms": SESSION_MS, "broker.id": 7}
    )
    with apache:
        create(AdminClient({"bootstrap.servers": apache.bootstrap_servers}), "theirs", 2, **{"retention.ms": "777"})
        apache.stop()
    with ours:
        admin = admin_of(ours)
        assert set(admin.list_topics(timeout=10).topics) == {"theirs"}
        resource = ConfigResource(ConfigResource.Type.TOPIC, "theirs")
        assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "777"
        write(ours, "theirs", [b"x"])
        create(admin, "ours", 3)
        assert "without metadata" not in ours.log()
        assert ours.stop() == 0
    with apache:
        admin = AdminClient({"bootstrap.servers": apache.bootstrap_servers, "log_level": 0})
        wait_until(lambda: len(admin.list_topics(timeout=10).topics) == 2, 30)
        topics = admin.list_topics(timeout=10).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"theirs": 2, "ours": 3}
        wait_until(
            lambda: all(
                partition.leader == 7
                for topic in admin.list_topics(timeout=10).topics.values()
                for partition in topic.partitions.values()
            ),
            30,
        )
        apache.stop()
