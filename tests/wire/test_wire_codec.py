"""What the oracles do not show: tagged fields, records that pass through, constructors, lifetimes."""

from __future__ import annotations

import pytest

from ottla.wire.apis.consumer_groups import Assignment, ConsumerGroupHeartbeatResponse, DescribedAssignment, Member
from ottla.wire.apis.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from ottla.wire.apis.groups import HeartbeatRequest, SyncGroupRequest, SyncGroupRequestAssignment
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.apis.versions import ApiVersionsResponse, SupportedFeatureKey
from ottla.wire.schema import Malformed


class FileSlice:
    """Stands for records that never become bytes in this process."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def fetch_response(*records: object) -> FetchResponse:
    partitions = [PartitionData(partition_index=i, high_watermark=9, records=one) for i, one in enumerate(records)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=b"i" * 16, partitions=partitions)])


@pytest.mark.parametrize("version", range(18))
def test_file_slices_pass_through(version: int) -> None:
    slices = FileSlice(5), FileSlice(300)
    parts = FetchResponse.parts_encoder(version)(fetch_response(slices[0], b"bytes", FileSlice(0), slices[1], None))
    assert [type(part) for part in parts] == [bytes, FileSlice, bytes, FileSlice, bytes]
    assert (parts[1], parts[3]) == slices
    as_bytes = fetch_response(b"x" * 5, b"bytes", b"", b"x" * 300, None)
    assert b"".join(b"x" * len(part) if isinstance(part, FileSlice) else part for part in parts) == FetchResponse.encoder(
        version
    )(as_bytes)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_buffers_join_their_neighbours(kind: type) -> None:
    parts = FetchResponse.parts_encoder(12)(fetch_response(kind(b"abc"), kind(b"")))
    assert parts == [FetchResponse.encoder(12)(fetch_response(b"abc", b""))]


def test_records_are_views_and_bytes_are_copies() -> None:
    request = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"batch")])]
    )
    frame = bytearray(ProduceRequest.encoder(9)(request))
    decoded, _ = ProduceRequest.decoder(9)(frame, 0)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0] = ord("c")  # the base offset is patched where it lies
    assert b"catch" in frame

    sync = SyncGroupRequest(group_id="g", assignments=[SyncGroupRequestAssignment(member_id="m", assignment=b"mine")])
    frame = bytearray(SyncGroupRequest.encoder(4)(sync))
    assignment = SyncGroupRequest.decoder(4)(frame, 0)[0].assignments[0].assignment
    frame[:] = bytes(len(frame))
    assert assignment == b"mine"


def test_tagged_structs() -> None:
    partition = PartitionData(diverging_epoch=EpochEndOffset(epoch=3, end_offset=40))
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
    decoded, _ = FetchResponse.decoder(12)(FetchResponse.encoder(12)(response), 0)
    assert decoded == response
    assert decoded.responses[0].partitions[0].current_leader is None  # was not sent
    older, _ = FetchResponse.decoder(11)(FetchResponse.encoder(11)(response), 0)
    assert older.responses[0].partitions[0].diverging_epoch is None  # cannot be sent


def test_a_tagged_struct_with_its_defaults_is_not_sent() -> None:
    without, with_defaults = FetchRequest(), FetchRequest(replica_state=ReplicaState())
    assert FetchRequest.encoder(15)(without) == FetchRequest.encoder(15)(with_defaults)


def test_unknown_tags_are_skipped() -> None:
    plain = HeartbeatRequest.encoder(4)(HeartbeatRequest(group_id="g", member_id="m"))
    tagged = plain[:-1] + b"\x02" + b"\x07\x03abc" + b"\xc8\x01\x00"
    assert HeartbeatRequest.decoder(4)(tagged + b"rest", 0) == (HeartbeatRequest(group_id="g", member_id="m"), len(tagged))


def test_unknown_tags_between_known_ones() -> None:
    response = ApiVersionsResponse(
        supported_features=[SupportedFeatureKey(name="f", max_version=2)], finalized_features_epoch=5, zk_migration_ready=True
    )
    plain = ApiVersionsResponse.encoder(3)(response)
    head, section = plain[: plain.index(b"\x03\x00")], plain[plain.index(b"\x03\x00") + 1 :]
    assert ApiVersionsResponse.decoder(3)(head + b"\x04\x20\x02??" + section, 0)[0] == response


def test_tags_inside_fixed_elements() -> None:
    """Arrays of fixed-width structs are read at one go, unless one of them has tags."""
    partitions = [FetchPartition(partition=i, fetch_offset=10 * i, replica_directory_id=bytes([i]) * 16) for i in range(5)]
    for some in (partitions, [FetchPartition(partition=7), *partitions[1:]], [FetchPartition(partition=7)] * 3):
        request = FetchRequest(topics=[FetchTopic(topic_id=b"t" * 16, partitions=some)])
        assert FetchRequest.decoder(17)(FetchRequest.encoder(17)(request), 0)[0] == request


def test_a_tagged_field_must_fill_its_payload() -> None:
    epoch_in_nine_bytes = b"\x01\x01\x09" + bytes(9)
    message = ApiVersionsResponse.encoder(3)(ApiVersionsResponse())[:-1] + epoch_in_nine_bytes
    with pytest.raises(Malformed, match="finalized_features_epoch does not fill"):
        ApiVersionsResponse.decoder(3)(message, 0)


def test_nullable_structs() -> None:
    for assignment in (None, Assignment()):
        response = ConsumerGroupHeartbeatResponse(assignment=assignment)
        assert ConsumerGroupHeartbeatResponse.decoder(0)(ConsumerGroupHeartbeatResponse.encoder(0)(response), 0)[0] == response


def test_constructors() -> None:
    assert FetchRequest() == FetchRequest(topics=[], session_epoch=-1, max_bytes=0x7FFF_FFFF, cluster_id=None)
    assert Member().assignment == DescribedAssignment()
    assert Member().assignment is not Member().assignment
    with pytest.raises(TypeError):
        FetchRequest(topic=[])
    with pytest.raises(TypeError):
        FetchRequest([])
    with pytest.raises(AttributeError):
        FetchRequest().topic = []
    assert repr(EpochEndOffset(epoch=1)) == "EpochEndOffset(epoch=1, end_offset=-1)"
    assert FetchRequest() != FetchResponse()
    with pytest.raises(TypeError):
        hash(FetchRequest())


def test_versions_out_of_range() -> None:
    for codec in (HeartbeatRequest.decoder, HeartbeatRequest.encoder, HeartbeatRequest.parts_encoder):
        for version in (-1, 5):
            with pytest.raises(ValueError, match=r"HeartbeatRequest has versions 0-4, not -?\d"):
                codec(version)
