"""What the console answers and does, over HTTP, where a browser would hide it: odd names, refusals, streams, endings."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import confluent_kafka
import pyarrow as pa
import pytest

from ottla import client
from ottla.client import Cluster, TopicPartition
from ottla.testing import Broker
from support.console import ConsoleProcess, parse_events
from support.server import ServerProcess, free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(broker.bootstrap_servers, "--log-dirs", broker.directory) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as connected:
        yield connected


def until(look: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.05)


def numbers(count: int) -> pa.Table:
    return pa.table({"key": [b"%d" % (one % 10) for one in range(count)], "value": [b"value %d" % one for one in range(count)]})


def test_topics_are_made_changed_and_deleted(console: ConsoleProcess, topic: str) -> None:
    made = console.order("topics", {"name": topic, "partitions": "3", "settings": {"retention.ms": "1000000"}})
    assert made.status == 200
    assert console.order("topics", {"name": topic}).status == 409
    assert console.get(f"topics/{topic}")["partitions"] == 3
    assert console.order(f"topics/{topic}/partitions", {"count": 5}).status == 200
    assert [part["partition"] for part in console.get(f"topics/{topic}")["parts"]] == [0, 1, 2, 3, 4]
    shrunk = console.order(f"topics/{topic}/partitions", {"count": 2})
    assert shrunk.status == 422
    assert "partitions" in shrunk.json["error"]

    def setting(name: str) -> tuple[str, bool]:
        found = {one["name"]: one for one in console.get(f"topics/{topic}/settings")["settings"]}
        return found[name]["value"], found[name]["isDefault"]

    assert setting("retention.ms") == ("1000000", False)
    changes = {"set": {"cleanup.policy": "compact"}, "delete": ["retention.ms"]}
    assert console.order(f"topics/{topic}/settings", changes).status == 200
    assert setting("cleanup.policy") == ("compact", False)
    assert setting("retention.ms")[1] is True
    assert console.order(f"topics/{topic}/settings", {"set": {"cleanup.policy": "shred"}}).status == 422
    assert console.order(f"topics/{topic}", {"confirm": "something else"}, "DELETE").status == 400
    assert console.order(f"topics/{topic}", {"confirm": topic}, "DELETE").status == 200
    assert console.request("GET", f"/api/topics/{topic}").status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("topics", {}),
        ("topics", []),
        ("topics", {"name": ["x"]}),
        ("topics", {"name": "x", "partitions": 0}),
        ("topics", {"name": "x", "settings": [1]}),
        ("topics/x/messages", {"value": {"hex": "xyz"}}),
        ("group/offsets?name=g", {"steps": 3}),
        ("group/offsets?name=g", {"steps": []}),
        ("group/offsets", {"steps": []}),
        ("transactions/abort", {"topic": "x"}),
    ],
)
def test_what_cannot_be_meant_is_refused(console: ConsoleProcess, path: str, body: object) -> None:
    refused = console.order(path, body)
    assert refused.status == 400
    assert refused.json["error"]


def test_a_search_goes_on_where_it_stopped_and_finds_each_once(console: ConsoleProcess, cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 4)
    client.write(topic, numbers(20_000), cluster=cluster, batch_size=10_000)
    for start in ("newest", "oldest"):
        found: list[str] = []
        resume = ""
        while resume is not None:
            events = console.events(f"topics/{topic}/search?q=777&from={start}&limit=13&resume={resume}")
            kinds = [kind for kind, _ in events]
            assert kinds[-2:] == ["done", "end"]
            assert "progress" in kinds
            found += [row["value"]["text"] for kind, data in events if kind == "hits" for row in data["rows"]]
            resume = events[-2][1]["resume"]
        assert sorted(found) == sorted(f"value {one}" for one in range(20_000) if "777" in str(one))
    newest = console.events(f"topics/{topic}/search?limit=5")
    assert [row["value"]["text"] for row in newest[0][1]["rows"]] != []
    last = console.events(f"topics/{topic}/search?from=offset&at=4999&partitions=0-3&limit=100")
    assert all(row["offset"] >= 4999 for kind, data in last if kind == "hits" for row in data["rows"])


def test_a_search_that_cannot_be(console: ConsoleProcess, cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1)
    for query in ("q=(&mode=regex", "resume=unknown"):
        assert console.request("GET", f"/api/topics/{topic}/search?{query}").status == 400
    assert [kind for kind, _ in console.events(f"topics/{topic}/search?q=x")] == ["done", "end"]  # nothing is in it
    for query in ("partitions=7", "partitions=0-999999999", "from=offset&at=x", "from=tomorrow", "limit=0"):
        ((kind, data),) = (event for event in console.events(f"topics/{topic}/search?{query}") if event[0] != "end")
        assert kind == "problem"
        assert data["error"]
    assert console.request("GET", f"/api/topics/{topic}/messages/0/0").status in (404, 422)


def test_a_listener_that_goes_away_ends_the_work(console: ConsoleProcess, cluster: Cluster, topic: str) -> None:
    """More tails than may run at once, one after the other: each place is given back."""
    client.create_topic(cluster, topic, 1)
    for _ in range(12):
        deadline = time.monotonic() + 60
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
            connection.request("GET", f"/api/topics/{topic}/tail")
            answer = connection.getresponse()
            first = answer.readline()
            connection.close()
            if first == b"event: begun\n":
                break
            assert time.monotonic() < deadline, "no place was given back"
            time.sleep(0.05)


def test_the_tail_keeps_up_or_says_what_it_skipped(console: ConsoleProcess, cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 2)
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
    connection.request("GET", f"/api/topics/{topic}/tail")
    answer = connection.getresponse()
    text = ""
    while "\n\n" not in text:
        text += answer.readline().decode()
    client.write(topic, numbers(50_000), cluster=cluster)
    told = shown = skipped = 0
    while told < 50_000:
        block = answer.readline().decode() + answer.readline().decode() + answer.readline().decode()
        for kind, news in parse_events(block):
            assert kind == "news"
            told, shown, skipped = told + news["read"], shown + len(news["rows"]), skipped + news["skipped"]
    connection.close()
    assert told == 50_000
    assert shown + skipped == 50_000
    assert skipped > 0


def test_a_message_there_and_back(console: ConsoleProcess, cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 3)
    headers = [{"name": "größe", "value": {"text": "XL"}}, {"name": "none", "value": None}]
    body = {"key": {"text": "schlüssel"}, "value": {"hex": "00ff10"}, "headers": headers, "partition": 2}
    assert console.order(f"topics/{topic}/messages", body).json == {"partition": 2, "offset": 0}
    message = console.get(f"topics/{topic}/messages/2/0")
    assert (message["key"], message["value"]) == ({"size": 10, "text": "schlüssel"}, {"size": 3, "base64": "AP8Q"})
    assert message["headers"] == [["größe", {"size": 2, "text": "XL"}], ["none", None]]
    assert console.order(f"topics/{topic}/messages", {"value": {"text": "x"}, "partition": 3}).status == 400
    big = "x" * 5000
    assert console.order(f"topics/{topic}/messages", {"value": {"text": big}, "partition": 0}).status == 200
    ((_, hits), *_) = console.events(f"topics/{topic}/search?partitions=0")
    assert hits["rows"][0]["value"]["cut"] is True
    assert console.get(f"topics/{topic}/messages/0/0")["value"]["text"] == big


def test_resets_are_seen_before_they_are_made(console: ConsoleProcess, cluster: Cluster, topic: str) -> None:
    group = f"g/{topic}?&#"
    name = f"name={quote(group, safe='')}"
    client.create_topic(cluster, topic, 2)
    client.write(topic, numbers(1000), cluster=cluster)
    ends = client.list_offsets(cluster, {TopicPartition(topic, one): -1 for one in (0, 1)})
    client.commit_offsets(cluster, group, {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 9})
    assert [row["committed"] for row in console.get(f"group?{name}")["partitions"]] == [7, 9]
    steps = console.get(f"group/preview?{name}&strategy=shift&value=2")["steps"]
    assert [(step["now"], step["new"]) for step in steps] == [(7, 9), (9, 11)]
    client.commit_offsets(cluster, group, {TopicPartition(topic, 0): 8})
    stale = console.order(f"group/offsets?{name}", {"steps": steps})
    assert stale.status == 409
    assert "has changed from 7 to 8" in stale.json["error"]
    steps = console.get(f"group/preview?{name}&strategy=latest&topic={topic}&partitions=1")["steps"]
    assert console.order(f"group/offsets?{name}", {"steps": steps}).status == 200
    committed = client.committed_offsets(cluster, group)
    assert [committed[TopicPartition(topic, one)].offset for one in (0, 1)] == [8, ends[TopicPartition(topic, 1)]]
    steps = console.get(f"group/preview?{name}&strategy=delete&partitions=0")["steps"]
    assert console.order(f"group/offsets?{name}", {"steps": steps}).status == 200
    assert list(client.committed_offsets(cluster, group)) == [TopicPartition(topic, 1)]
    assert console.order(f"group?{name}", {"confirm": "g"}, "DELETE").status == 400
    assert console.order(f"group?{name}", {"confirm": group}, "DELETE").status == 200
    assert console.request("GET", f"/api/group?{name}").status == 404


def test_a_group_with_members_is_not_reset(console: ConsoleProcess, broker: Broker, cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1)
    client.commit_offsets(cluster, topic, {TopicPartition(topic, 0): 0})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()), "the member has its partition")
    try:
        steps = [{"topic": topic, "partition": 0, "now": 0, "new": 0}]
        refused = console.order(f"group/offsets?name={topic}", {"steps": steps})
        assert refused.status == 409
        assert "has members" in refused.json["error"]
        assert console.order(f"group?name={topic}", {"confirm": topic}, "DELETE").status == 409
        assert console.get(f"group?name={topic}")["members"][0]["assignment"] == f"{topic} 0"
    finally:
        consumer.close()


def test_internal_topics_are_decoded(console: ConsoleProcess, cluster: Cluster, topic: str) -> None:
    client.create_topic(cluster, topic, 1)
    client.commit_offsets(cluster, topic, {TopicPartition(topic, 0): 5})
    events = console.events(f"topics/__consumer_offsets/search?q={topic}&in=key")
    (row,) = (row for kind, data in events if kind == "hits" for row in data["rows"])
    assert row["decoded"]["key"] == {"type": 1, "group": topic, "topic": topic, "partition": 0}
    assert row["decoded"]["value"]["offset"] == 5


def test_a_cluster_that_went_away_is_still_shown_and_comes_back(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data")) as server, ConsoleProcess(server.bootstrap_servers) as console:
        assert console.get("overview")["totals"]["brokers"] == 1
        server.kill()
        until(lambda: bool(console.get("overview")["problem"]), "the console notices")
        assert "Cannot connect" in console.get("overview")["problem"]
        assert console.get("overview")["totals"]["brokers"] == 1
        server.start()
        until(lambda: console.get("overview")["problem"] is None, "the console is back")


def test_a_cluster_that_was_never_there_is_an_answer_too() -> None:
    with ConsoleProcess(f"127.0.0.1:{free_port()}") as console:
        answer = console.request("GET", "/api/overview")
        assert answer.status == 502
        assert "Cannot connect" in answer.json["error"]
        assert console.request("GET", "/").status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_console_beside_a_broker_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    server = ServerProcess(str(tmp_path / "data"))
    server.options = ["--console", "--console-port", str(port)]

    def there() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/api/overview")
            answer = connection.getresponse()
            return answer.status == 200 and json.loads(answer.read())["totals"]["brokers"] == 1
        except OSError:
            return False
        finally:
            connection.close()

    with server:
        until(there, "the console answers")
        os.kill(server.pid, number)
        assert server.process is not None
        server.process.wait(60)
        server.process = None
        until(lambda: not there(), "the console is gone")


def test_many_pages_are_told_of_every_look(console: ConsoleProcess) -> None:
    numbers: list[int] = []

    def listen() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
        connection.request("GET", "/api/events")
        answer = connection.getresponse()
        text = ""
        while text.count("\n\n") < 3:
            text += answer.readline().decode()
        numbers.extend(news["number"] for _, news in parse_events(text))
        connection.close()

    threads = [threading.Thread(target=listen) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(numbers) == 30
    assert len(set(numbers)) < 12  # the cluster was looked at once for all of them
