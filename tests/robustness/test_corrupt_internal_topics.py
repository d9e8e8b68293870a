"""What should never be in an internal topic is in it: it is named in the log and skipped, and everything else is loaded.

The broker is stopped, batches are written behind the end of its segments, and it is started again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.coordinator.hashing import partition_for
from ottla.model import Error
from ottla.records.batch import Record, build, read_header, split
from ottla.wire.apis.group_records import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from ottla.wire.apis.transaction_records import TransactionLogKey, TransactionLogValue
from ottla.wire.apis.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from ottla.wire.schema import encode_versioned
from robustness.coordinator_calls import Calls, Place
from robustness.raw import RawClient
from support.server import ServerProcess

PARTITIONS = 2
SETTINGS = {"offsets.topic.num.partitions": PARTITIONS, "transaction.state.log.num.partitions": PARTITIONS}
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
NOW = 1_700_000_000_000

Row = tuple[bytes | None, bytes | None]


def offset_key(group: str, topic: str = "t") -> bytes:
    return encode_versioned(OffsetCommitKey(group=group, topic=topic, partition=0), 1)


def offset_value(offset: int) -> bytes:
    return encode_versioned(OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1 << 60), 3)


def group_key(group: str) -> bytes:
    return encode_versioned(GroupMetadataKey(group=group), 2)


def id_key(name: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=name), 0)


def id_value(producer_id: int) -> bytes:
    value = TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=4,
        transaction_timeout_ms=60_000,
        transaction_status=0,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=1 << 60,
        transaction_start_timestamp_ms=-1,
    )
    return encode_versioned(value, 0)


NONSENSE: dict[str, dict[str, Row]] = {
    OFFSETS: {
        "no key": (None, b"value"),
        "an empty key": (b"", b"value"),
        "half a version": (b"\0", b"value"),
        "a key that is cut off": (offset_key("cut")[:7], offset_value(1)),
        "a length beyond the end": (b"\0\1\x7f\xffgroup", offset_value(1)),
        "text that is not UTF-8": (b"\0\1\0\2\xff\xfe\0\1t\0\0\0\0", offset_value(1)),
        "a value that is cut off": (offset_key("cut-value"), offset_value(1)[:5]),
        "an empty value": (offset_key("empty-value"), b""),
        "a value of no version": (offset_key("later"), b"\x7f\xff" + offset_value(1)[2:]),
        "a group that is rubbish": (group_key("rubbish"), b"\0\3" + b"\xff" * 40),
    },
    TRANSACTIONS: {
        "no key": (None, b"value"),
        "an empty key": (b"", b"value"),
        "half a version": (b"\0", b"value"),
        "a key that is cut off": (id_key("cut")[:4], id_value(1)),
        "a value that is cut off": (id_key("cut-value"), id_value(1)[:9]),
        "an empty value": (id_key("empty-value"), b""),
        "a value of no version": (id_key("later"), b"\x7f\xff" + id_value(1)[2:]),
        "a state that does not exist": (id_key("state"), id_value(1)[:16] + b"\x63" + id_value(1)[17:]),
    },
}


def segment(server: ServerProcess, topic: str, partition: int) -> Path:
    return max(Path(server.directory).glob(f"{topic}-{partition}/*.log"))


def end_of(path: Path) -> int:
    headers = [header for _, header in split(path.read_bytes())]
    return headers[-1].next_offset if headers else int(path.stem)


def append(path: Path, rows: list[Row], *, broken: bool = False) -> int:
    """A batch behind the last one; its base offset."""
    base = end_of(path)
    records = [Record(base + at, NOW, key, value, ()) for at, (key, value) in enumerate(rows)]
    batch = bytearray(build(records, base_offset=base, leader_epoch=0))
    if broken:
        batch[-2] ^= 0x55  # in the last value, so that every length still holds
    assert read_header(batch).base_offset == base
    with path.open("ab") as file:
        file.write(batch)
    return base


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A broker that was used and stopped cleanly: groups and transactional ids are in every partition."""
    with ServerProcess(str(tmp_path / "data"), SETTINGS) as running:
        with RawClient(running.port) as client:
            calls = Calls(client)
            calls.create("t")
            calls.topic = "t"
            for number in range(8):
                assert calls.commit(Place(f"before-{number}", "", -1), 100 + number) == Error.NONE
                assert calls.init(f"before-{number}").error_code == Error.NONE
        assert running.stop() == 0
        yield running


def described(calls: Calls, names: list[str]) -> dict[str, tuple[Error, int]]:
    """Per transactional id the error and the epoch."""
    response = calls.client.ask(DescribeTransactionsRequest(transactional_ids=names), 0)
    assert isinstance(response, DescribeTransactionsResponse)
    return {one.transactional_id: (Error(one.error_code), one.producer_epoch) for one in response.transaction_states}


def check_the_rest(server: ServerProcess) -> None:
    """All that was there before and after the bad batches is loaded, and both coordinators work."""
    with RawClient(server.port) as client:
        calls = Calls(client)
        calls.topic = "t"
        assert [calls.committed(f"before-{number}") for number in range(8)] == [100 + number for number in range(8)]
        assert [calls.committed(f"after-{number}") for number in range(4)] == [200 + number for number in range(4)]
        names = [f"before-{number}" for number in range(8)]
        assert described(calls, names) == dict.fromkeys(names, (Error.NONE, 0))
        names = [f"after-{number}" for number in range(4)]
        assert described(calls, names) == dict.fromkeys(names, (Error.NONE, 4))
        for number in range(4):
            assert calls.commit(Place(f"after-{number}", "", -1), 300) == Error.NONE
            assert calls.committed(f"after-{number}") == 300
            assert calls.init(f"after-{number}").producer_epoch == 5
    assert "Traceback" not in server.log(), server.log()[-4000:]


def append_good(server: ServerProcess) -> None:
    """Records behind the bad ones: four groups and four transactional ids."""
    for number in range(4):
        name = f"after-{number}"
        at = partition_for(name, PARTITIONS)
        append(segment(server, OFFSETS, at), [(offset_key(name), offset_value(200 + number))])
        append(segment(server, TRANSACTIONS, at), [(id_key(name), id_value(500_000 + number))])


def check_the_log(server: ServerProcess, topic: str, partition: int, offset: int) -> None:
    """One warning names the place."""
    lines = [line for line in server.log().splitlines() if f"{topic}-{partition}:" in line and f" offset {offset} " in line]
    assert len(lines) == 1, f"{topic}-{partition}, offset {offset}: {lines}\n{server.log()[-3000:]}"
    assert " WARNING " in lines[0] or " ERROR " in lines[0], lines[0]


def test_nonsense_in_a_sound_batch(server: ServerProcess) -> None:
    """Each record is named by topic, partition and offset."""
    places = []
    for topic, rows in NONSENSE.items():
        for partition in range(PARTITIONS):
            base = append(segment(server, topic, partition), list(rows.values()))
            places += [(topic, partition, base + at) for at in range(len(rows))]
    append_good(server)
    server.start()
    check_the_rest(server)
    for topic, partition, offset in places:
        check_the_log(server, topic, partition, offset)


def test_a_batch_with_a_wrong_checksum(server: ServerProcess) -> None:
    """The batch is named and left out; what it says of a group is not believed, although it could be read."""
    places = []
    for topic, row in (
        (OFFSETS, (offset_key("before-0"), offset_value(666))),
        (TRANSACTIONS, (id_key("before-0"), id_value(9))),
    ):
        for partition in range(PARTITIONS):
            places.append((topic, partition, append(segment(server, topic, partition), [row], broken=True)))
    append_good(server)
    server.start()
    check_the_rest(server)
    for topic, partition, offset in places:
        check_the_log(server, topic, partition, offset)


def test_a_torn_end_after_a_kill(server: ServerProcess) -> None:
    """After kill -9 recovery cuts off what fails its checksum; all that was acknowledged before it is there."""
    server.start()
    server.kill()
    for topic, row in ((OFFSETS, (offset_key("x"), offset_value(1))), (TRANSACTIONS, (id_key("x"), id_value(9)))):
        for partition in range(PARTITIONS):
            append(segment(server, topic, partition), [row], broken=True)
    server.start()
    with RawClient(server.port) as client:
        calls = Calls(client)
        calls.topic = "t"
        assert [calls.committed(f"before-{number}") for number in range(8)] == [100 + number for number in range(8)]
        names = [f"before-{number}" for number in range(8)]
        assert described(calls, names) == dict.fromkeys(names, (Error.NONE, 0))
        assert calls.committed("x") == -1
    assert "Traceback" not in server.log()
