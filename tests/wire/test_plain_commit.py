"""OffsetCommit read and answered by hand: never otherwise than by its table."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.wire import _commits_twin, plain_commit
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.plain_commit import PlainCommit, partitions_of, read_plain_commit
from ottla.wire.schema import Malformed

try:
    from ottla.wire import _commits
except ImportError:
    _commits = None  # type: ignore[assignment]

native = pytest.mark.skipif(_commits is None, reason="the native codec is not built: python setup.py build_ext --inplace")
BOTH = [pytest.param(_commits_twin, id="twin"), pytest.param(_commits, id="native", marks=native)]

NAMES = st.text(max_size=20)
PARTITIONS = st.builds(
    OffsetCommitRequestPartition,
    partition_index=st.integers(-1, 5000),
    committed_offset=st.integers(-(2**63), 2**63 - 1),
    committed_leader_epoch=st.integers(-1, 2**31 - 1),
    committed_metadata=st.sampled_from([None, "", "", "", "note"]),
)
TOPICS = st.builds(OffsetCommitRequestTopic, name=NAMES, partitions=st.lists(PARTITIONS, max_size=5))
REQUESTS = st.builds(
    OffsetCommitRequest,
    group_id=NAMES | st.text("g", min_size=120, max_size=140),
    generation_id_or_member_epoch=st.integers(-1, 2**31 - 1),
    member_id=NAMES,
    group_instance_id=st.none() | NAMES,
    topics=st.lists(TOPICS, max_size=3),
)


def is_plain(request: OffsetCommitRequest) -> bool:
    texts = [request.group_id, request.member_id, request.group_instance_id or "", *(topic.name for topic in request.topics)]
    notes = [item.committed_metadata for topic in request.topics for item in topic.partitions]
    return all(len(text.encode()) < 127 for text in texts) and not any(notes)


@given(REQUESTS, st.sampled_from([8, 9]))
def test_what_is_plain_is_read_as_the_table_reads_it(request: OffsetCommitRequest, version: int) -> None:
    data = b"head" + request.encoder(version)(request)
    plain = read_plain_commit(memoryview(data), 4)
    assert (plain is not None) == is_plain(request)
    if plain is not None:
        assert plain.request() == request
        answer = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=item.partition_index) for item in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
        assert plain.taken() == answer.encoder(version)(answer)


@given(REQUESTS, st.data())
def test_what_is_not_sound_is_left_to_the_table(request: OffsetCommitRequest, data: st.DataObject) -> None:
    """Bytes that are cut, changed or followed by others: either not plain, or what the table says too."""
    sound = request.encoder(8)(request)
    at = data.draw(st.integers(0, len(sound) - 1))
    changed = sound[:at] + bytes([data.draw(st.integers(0, 255))]) + sound[at + 1 :]
    for spoilt in (sound[:at], changed, sound + b"\0"):
        plain = read_plain_commit(spoilt, 0)
        if plain is not None:
            read, end = OffsetCommitRequest.decoder(8)(spoilt, 0)
            assert (plain.request(), len(spoilt)) == (read, end)


def test_a_lie_about_the_number_of_partitions_is_not_plain() -> None:
    topic = OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(committed_metadata="")])
    sound = OffsetCommitRequest(group_id="g", topics=[topic])
    data = bytearray(sound.encoder(8)(sound))
    data[data.index(b"\x02t") + 2] = 100
    assert read_plain_commit(data, 0) is None
    with pytest.raises(Malformed):
        OffsetCommitRequest.decoder(8)(data, 0)


def row(partition: int) -> bytes:
    return struct.pack(">iqiBB", partition, 1, -1, 1, 0)


def test_what_is_native_is_used() -> None:
    assert plain_commit.read_plain is (_commits_twin if _commits is None else _commits).read_plain


@pytest.mark.parametrize("k", BOTH)
def test_partitions_that_are_there(k: ModuleType) -> None:
    assert k.all_in(b"", {})
    assert k.all_in(row(0) + row(-1), {0: "", -1: ""})
    assert not k.all_in(row(0) + row(3), {0: ""})
    assert not k.all_in(row(3) + row(0), {0: ""})


@native
@given(REQUESTS, st.data())
def test_the_native_reader_is_the_twin(request: OffsetCommitRequest, data: st.DataObject) -> None:
    """On what is sound, cut at any place, changed at any place, or followed by others; from any start on."""
    sound = request.encoder(8)(request)
    at = data.draw(st.integers(0, len(sound) - 1))
    changed = sound[:at] + bytes([data.draw(st.integers(0, 255))]) + sound[at + 1 :]
    for given_bytes in (sound, sound[:at], changed, sound + b"\0"):
        assert _commits.read_plain(given_bytes, 0) == _commits_twin.read_plain(given_bytes, 0)
        assert _commits.read_plain(memoryview(b"12" + given_bytes), 2) == _commits_twin.read_plain(b"12" + given_bytes, 2)
    fields = _commits.read_plain(sound, 0)
    if fields is not None:
        assert _commits.taken(fields[-1]) == _commits_twin.taken(fields[-1])


@pytest.mark.parametrize("k", BOTH)
def test_a_body_that_begins_beyond_the_frame_is_not_plain(k: ModuleType) -> None:
    assert k.read_plain(b"abc", 4) is None
    assert k.read_plain(b"", 0) is None


def test_partitions_one_by_one() -> None:
    plain = PlainCommit("g", -1, "", None, [("t", row(0) + row(3))])
    assert partitions_of(plain.topics[0][1]) == [(0, 1, -1, 1, 0), (3, 1, -1, 1, 0)]


@pytest.mark.parametrize("k", BOTH)
def test_anything_unusual_is_not_plain(k: ModuleType) -> None:
    """Each byte that a plain commit has in common with all others."""
    head = b"\2g" + struct.pack(">i", -1) + b"\1\0\2"
    sound = head + b"\2t\3" + row(0) + row(1) + b"\0\0"
    assert k.read_plain(sound, 0) == ("g", -1, "", None, [("t", row(0) + row(1))])
    ends = len(head) + 3 + len(row(0))
    unusual = {ends - 2: 2, ends - 1: 1, len(sound) - 2: 1, len(sound) - 1: 1, len(head) - 1: 0, len(head): 0, 0: 0, 6: 0}
    for at, value in unusual.items():
        changed = bytearray(sound)
        changed[at] = value
        assert k.read_plain(bytes(changed), 0) is None, at
