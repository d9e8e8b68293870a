"""`/metrics` and `/healthz` of a running broker, on the port that clients use."""

import json
import re
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from ottla import client
from ottla.model import Error
from ottla.testing import Broker
from robustness.raw import wait_until

TOPIC = "measured"


@pytest.fixture(scope="module")
def broker():
    with Broker({"num.partitions": 2, "transaction.state.log.num.partitions": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(100):
            producer.produce(TOPIC, b"x" * 100, key=str(number))
        producer.flush()
        yield running


def samples(broker, path="/metrics"):
    """Every sample by name and labels, as Prometheus reads them."""
    with urlopen(f"http://{broker.bootstrap_servers}{path}", timeout=20) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = page.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = (one.name, frozenset(one.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = one.value
    return found


def value(broker, name, **labels):
    return samples(broker).get((name, frozenset(labels.items())))


def test_what_goes_in_and_out(broker):
    written = samples(broker)

    def of(found, name):
        return found[f"kafka_server_brokertopicmetrics_{name}_total", frozenset({("topic", TOPIC)})]

    assert of(written, "messagesin") == 100
    assert of(written, "bytesin") > 10_000
    assert client.read(TOPIC, cluster=broker.bootstrap_servers).table().num_rows == 100
    assert of(samples(broker), "bytesout") - of(written, "bytesout") == of(written, "bytesin")


def test_offsets_and_sizes_of_partitions(broker):
    found = samples(broker)
    ends = [
        found["kafka_log_log_logendoffset", frozenset({("topic", TOPIC), ("partition", str(number))})] for number in range(2)
    ]
    assert sum(ends) == 100
    assert found["kafka_log_log_size", frozenset({("topic", TOPIC), ("partition", "0")})] > 1000
    assert found["kafka_server_replicamanager_underreplicatedpartitions", frozenset()] == 0
    assert found["kafka_controller_kafkacontroller_activecontrollercount", frozenset()] == 1


def test_requests_and_where_their_time_went(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("another", 1)])["another"].result(20)
    found = samples(broker)
    requests = sum(
        n for (name, labels), n in found.items() if name.endswith("requests_total") and ("request", "CreateTopics") in labels
    )
    assert requests == 1
    of = frozenset({("request", "CreateTopics")})
    times = ("totaltimems", "localtimems", "remotetimems", "requestqueuetimems", "responsesendtimems")
    sums = {name: found[f"kafka_network_requestmetrics_{name}_sum", of] for name in times}
    assert {found[f"kafka_network_requestmetrics_{name}_count", of] for name in times} == {1}
    assert sums["remotetimems"] > sums["localtimems"] > 0, "it waits for the controller and its disk"
    assert sums["totaltimems"] == pytest.approx(sums["localtimems"] + sums["remotetimems"] + sums["requestqueuetimems"])


def test_a_request_that_fails_is_counted(broker):
    broker.faults.fail("ListGroups", Error.GROUP_AUTHORIZATION_FAILED)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert admin.list_consumer_groups().result(20).errors
    name = "kafka_network_requestmetrics_errors_total"
    assert value(broker, name, request="ListGroups", error="GROUP_AUTHORIZATION_FAILED") == 1


def test_a_consumer_that_waits_is_in_purgatory(broker):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "fetch.wait.max.ms": 20_000})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_END)])
    try:
        consumer.poll(0.1)
        wait_until(lambda: value(broker, "kafka_server_delayedoperationpurgatory_purgatorysize", delayedOperation="Fetch") == 1)
    finally:
        consumer.close()


def test_groups_by_state(broker):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "watched"})
    consumer.subscribe([TOPIC])
    try:
        consumer.poll(0.1)
        name = "kafka_coordinator_group_groupmetadatamanager_numgroupsstable"
        wait_until(lambda: consumer.poll(0.1) is None and value(broker, name) == 1)
    finally:
        consumer.close()


def test_health(broker):
    with urlopen(f"http://{broker.bootstrap_servers}/healthz", timeout=20) as page:
        told = json.load(page)
    assert told["status"] == "ok"
    assert told["offline_log_dirs"] == []


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../etc/passwd"])
def test_there_are_two_pages(broker, path):
    host, port = broker.bootstrap_servers.split(":")
    asking = HTTPConnection(host, int(port), timeout=20)
    asking.request("GET", path)
    assert asking.getresponse().status == 404
    asking.close()


@pytest.mark.parametrize("sent", [b"GET /metrics", b"GET \r\n\r\n", b"GET " + b"x" * 20_000, b"POST /metrics HTTP/1.1\r\n\r\n"])
def test_what_is_no_request_gets_no_page(broker, sent):
    host, port = broker.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), 20) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        try:
            assert sock.recv(100) == b""
        except ConnectionResetError:
            pass
    assert value(broker, "kafka_server_brokertopicmetrics_messagesin_total", topic=TOPIC) == 100, "others are served"


def test_it_can_be_turned_off():
    with Broker({"metrics.listener.names": ""}) as quiet:
        host, port = quiet.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port)), 20) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert sock.recv(100) == b""


def test_a_log_for_machines(tmp_path):
    settings = ["--override", f"log.dirs={tmp_path / 'data'}", "--override", "listeners=PLAINTEXT://127.0.0.1:0"]
    command = [sys.executable, "-m", "ottla", "server", *settings, "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = [json.loads(process.stderr.readline())]
            while "answers at" not in lines[-1]["message"]:
                lines.append(json.loads(process.stderr.readline()))
        finally:
            process.terminate()
            process.wait(30)
    assert {"time", "level", "logger", "message"} <= lines[-1].keys()
    assert lines[-1]["level"] == "INFO"


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml"])
def test_what_is_drawn_and_watched_exists(broker, name):
    """Every metric that the dashboard and the alerts ask for is one that a broker shows."""
    text = (Path(__file__).parents[2] / "docs" / "monitoring" / name).read_text()
    asked = set(re.findall(r"\b(?:kafka|ottla|process)_[a-z_]+\b", text))
    with urlopen(f"http://{broker.bootstrap_servers}/metrics", timeout=20) as page:
        families = set(re.findall(r"^# TYPE (\S+)", page.read().decode(), re.MULTILINE))
    assert len(asked) > 10
    assert {one.removesuffix("_bucket") for one in asked} <= families


def test_those_who_hold_on_to_their_places_do_not_shut_out_others(broker):
    host, port = broker.bootstrap_servers.split(":")
    silent = [socket.create_connection((host, int(port)), 20) for _ in range(20)]
    try:
        for sock in silent:
            sock.sendall(b"GET ")
        with urlopen(f"http://{broker.bootstrap_servers}/healthz", timeout=20) as page:
            assert json.load(page)["status"] == "ok"
    finally:
        for sock in silent:
            sock.close()
