"""kill -9 at every point of a transaction: what was promised before it holds after it, and the transaction can be ended.

One kill meets a transaction at each point at once, one for each way it will end. Random moments are test_exactly_once's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from clients.adapters import BY_NAME, read
from ottla.model import Error
from ottla.wire.apis.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic
from robustness.coordinator_calls import Calls, Place, Producer
from robustness.raw import RawClient, wait_until
from support.server import ServerProcess

SETTINGS = {"offsets.topic.num.partitions": 4, "transaction.state.log.num.partitions": 4}
READ_COMMITTED = 1
LATEST = -1
STEPS = ("add", "write", "offsets", "write again")
ENDS = ("commit", "abort", "init")


class Story:
    """One producer with a topic and a group of its own."""

    def __init__(self, calls: Calls, end: str) -> None:
        self.end_by = end
        self.topic = calls.fresh("told")
        self.group = Place(calls.fresh("g"), "", -1)
        calls.create(self.topic)
        self.producer: Producer = calls.producer()

    def go(self, calls: Calls, step: str) -> None:
        calls.topic = self.topic
        act: dict[str, Callable[[], Error]] = {
            "add": lambda: calls.add(self.producer)[0],
            "write": lambda: calls.produce(self.producer, sequence=0),
            "offsets": lambda: self._offsets(calls),
            "write again": lambda: calls.produce(self.producer, sequence=1),
        }
        assert act[step]() == Error.NONE, step

    def _offsets(self, calls: Calls) -> Error:
        assert calls.add_offsets(self.producer, self.group.group) == Error.NONE
        return calls.commit_offset(self.producer, self.group, offset=42)

    def finish(self, calls: Calls) -> None:
        """The end; the second time it is answered the markers are written."""
        if self.end_by == "init":
            found = calls.init(self.producer.name)
            assert (found.error_code, found.producer_epoch) == (Error.NONE, self.producer.epoch + 2), "fenced, then a new epoch"
            assert calls.end(self.producer, True) == Error.PRODUCER_FENCED
            return
        for _ in range(2):
            assert calls.end(self.producer, self.end_by == "commit") == Error.NONE


def stable_end(calls: Calls, topic: str) -> int:
    row = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)])
    response = calls.client.ask(ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=[row]), 5)
    assert isinstance(response, ListOffsetsResponse)
    return int(response.topics[0].partitions[0].offset)


def check(server: ServerProcess, stories: list[Story]) -> None:
    """What each story has left behind; the end marker makes three offsets of two records."""
    with RawClient(server.port) as client:
        calls = Calls(client)
        for story in stories:
            calls.topic = story.topic
            wait_until(lambda name=story.topic: stable_end(calls, name) == 3)
            assert calls.committed(story.group.group) == (42 if story.end_by == "commit" else -1)
    committed = [(story.topic, 0) for story in stories if story.end_by == "commit"]
    aborted = [(story.topic, 0) for story in stories if story.end_by != "commit"]
    for partitions, count in ((committed, 2 * len(committed)), (aborted, 0)):
        with BY_NAME["confluent"].reader(
            server.bootstrap_servers, partitions, {"isolation.level": "read_committed", "log_level": 0}
        ) as reader:
            read(reader, count)
            assert reader.poll(0.3) == []


@pytest.mark.parametrize("done", range(len(STEPS) + 1), ids=["nothing", *STEPS])
def test_a_transaction_goes_on_after_a_kill(tmp_path: Path, done: int) -> None:
    with ServerProcess(str(tmp_path / "data"), SETTINGS) as server:
        with RawClient(server.port) as client:
            calls = Calls(client)
            stories = [Story(calls, end) for end in ENDS]
            for step, story in product(STEPS[:done], stories):
                story.go(calls, step)
        server.kill()
        server.start()
        with RawClient(server.port) as client:
            calls = Calls(client)
            for story in stories:
                assert stable_end(calls, story.topic) == 0, "an open transaction is still open"
            for step, story in product(STEPS[done:], stories):
                story.go(calls, step)
            for story in stories:
                story.finish(calls)
        check(server, stories)
        server.kill()
        server.start()
        check(server, stories)
        assert "Traceback" not in server.log(), server.log()[-4000:]


def test_a_stale_producer_stays_fenced_after_a_kill(tmp_path: Path) -> None:
    with ServerProcess(str(tmp_path / "data"), SETTINGS) as server:
        with RawClient(server.port) as client:
            calls = Calls(client)
            topic = calls.topic
            producer = calls.begun()
            assert calls.produce(producer) == Error.NONE
            assert calls.end(producer, True) == Error.NONE
        server.kill()
        server.start()
        with RawClient(server.port) as client:
            calls = Calls(client)
            calls.topic = topic
            old = producer.older()
            assert calls.add(old) == [Error.PRODUCER_FENCED]
            assert calls.produce(old) == Error.INVALID_PRODUCER_EPOCH
            assert calls.end(old, True) == Error.PRODUCER_FENCED
            assert Error(calls.init(old.name, producer_id=old.id, epoch=old.epoch).error_code) == Error.PRODUCER_FENCED
            assert calls.end(producer, True) == Error.NONE, "the end that it had is still known"
