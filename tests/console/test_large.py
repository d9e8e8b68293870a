"""A topic with a thousand partitions and millions of messages, and hundreds of groups: lists, a search, and memory.

`make soak` takes 5,000,000 messages and holds the console to its figures; the short form has fewer messages and looks at what
does not depend on the machine.
"""

from __future__ import annotations

import http.client
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from ottla import client
from ottla.client import TopicPartition
from support.console import ConsoleProcess
from support.server import ServerProcess

SOAK = bool(os.environ.get("OTTLA_SOAK"))
MESSAGES = 5_000_000 if SOAK else 500_000
GROUPS = 500
PARTITIONS = 1000
AT_ONCE = 250_000
FILLER = b"x" * 80
LISTS = ("overview", "topics", "topics/large", "groups", "group?name=group-007", "disks", "transactions")
READ_BY_EACH = 20
"""Partitions that a group has committed something for."""


def fill(cluster: client.Cluster) -> None:
    """Values of some hundred bytes; every hundred-thousandth holds a needle, the first of them soon."""
    client.create_topic(cluster, "large", PARTITIONS, 1)
    with client.Producer(cluster) as producer:
        for start in range(0, MESSAGES, AT_ONCE):
            some = range(start, start + AT_ONCE)
            values = [b"message %d %s %s" % (one, b"needle" if one % 100_000 == 50 else b"", FILLER) for one in some]
            numbers = pa.array([one % PARTITIONS for one in some], pa.int32())
            producer.write("large", pa.table({"value": pa.array(values, pa.binary()), "partition": numbers}))
    for number in range(GROUPS):
        places = [TopicPartition("large", (number + one) % PARTITIONS) for one in range(READ_BY_EACH)]
        client.commit_offsets(cluster, f"group-{number:03}", dict.fromkeys(places, 10))


def timed(console: ConsoleProcess, path: str) -> tuple[float, int]:
    begun = time.monotonic()
    answer = console.request("GET", f"/api/{path}")
    assert answer.status == 200
    return time.monotonic() - begun, len(answer.body)


def first_hit(console: ConsoleProcess, query: str) -> tuple[float, float]:
    """Seconds until the first hit, and until the end."""
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=250)
    begun = time.monotonic()
    connection.request("GET", f"/api/topics/large/search?{query}")
    answer = connection.getresponse()
    first = None
    while line := answer.readline():
        if first is None and line == b"event: hits\n":
            first = time.monotonic() - begun
    connection.close()
    assert first is not None
    return first, time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.soak
def test_a_large_cluster(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data")) as server, client.Cluster(server.bootstrap_servers) as cluster:
        fill(cluster)
        with ConsoleProcess(server.bootstrap_servers, "--log-dirs", server.directory) as console:
            overview = console.get("overview")
            assert overview["totals"]["messages"] == MESSAGES + GROUPS * READ_BY_EACH
            assert len(console.get("groups")["groups"]) == GROUPS
            assert {group["lag"] for group in console.get("groups")["groups"]} == {READ_BY_EACH * (MESSAGES // PARTITIONS - 10)}
            assert len(console.get("topics/large")["parts"]) == PARTITIONS
            begun = console.rss_mb()
            lists = {path: timed(console, path) for path in LISTS}
            first, whole = first_hit(console, "q=needle&limit=1000&from=oldest")
            newest, _ = first_hit(console, "limit=100")
            searched = console.reader_peak_mb()
            for _ in range(3):
                first_hit(console, "q=needle&limit=1000")
            afterwards = console.reader_peak_mb()
            ended = console.rss_mb()
            rows = {path: f"{seconds:.2f} s, {size // 1000} KB" for path, (seconds, size) in lists.items()}
            print(f"\n{MESSAGES:,} messages: {rows}; first hit {first:.2f} s, all {whole:.2f} s, newest {newest:.2f} s; "
                  f"console {begun:.0f} MB, at the end {ended:.0f} MB; its reader at most {searched:.0f} MB, "
                  f"after more searches {afterwards:.0f} MB")  # fmt: skip
            assert max(begun, ended) < 100
            assert 0 < afterwards < searched + 30
            if SOAK:
                assert max(seconds for seconds, _ in lists.values()) < 1
                assert max(first, newest) < 2
