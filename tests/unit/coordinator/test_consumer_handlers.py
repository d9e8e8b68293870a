"""ConsumerGroupHeartbeat, ConsumerGroupDescribe and ListGroups on the wire, version by version."""

import pytest

import ottla.api.consumer_groups  # noqa: F401 - declares the handlers
from ottla.model import Error
from ottla.wire.apis.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from ottla.wire.apis.groups import DescribeGroupsRequest, ListGroupsRequest
from unit.coordinator.test_handlers import Wire


@pytest.fixture
def wire(world):
    return Wire(world)


async def join(wire, version=0, member_id="m", **fields):
    await wire.world.groups.partition_of("g")
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        rebalance_timeout_ms=1000,
        **{"subscribed_topic_names": ["t"], "topic_partitions": [], **fields},
    )
    return await wire(request, version)


def parts(answer):
    return {topic.topic_id: list(topic.partitions) for topic in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
async def test_join_and_heartbeat(wire, version):
    joined = await join(wire, version)
    assert (joined.error_code, joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == (0, "m", 1, 5000)
    topic_id = wire.world.topics.id("t")
    assert parts(joined) == {topic_id: [0, 1, 2, 3]}
    owned = [TopicPartitions(topic_id=topic_id, partitions=[0, 1, 2, 3]), TopicPartitions(topic_id=b"x" * 16, partitions=[])]
    beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1, topic_partitions=owned)
    answer = await wire(beat, version)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 1, None)
    left = await wire(ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1), version)
    assert (left.error_code, left.member_epoch) == (0, -1)


async def test_member_ids_by_version(wire):
    assert (await join(wire, 0, member_id="")).member_id
    assert (await join(wire, 1, member_id="")).error_code == Error.INVALID_REQUEST


async def test_patterns_by_version(wire):
    wire.world.topics.put("tt", 1)
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "t+"}
    assert (await join(wire, 0, **pattern)).error_code == Error.INVALID_REQUEST  # the field is not there
    joined = await join(wire, 1, **pattern)
    assert set(parts(joined)) == {wire.world.topics.id("t"), wire.world.topics.id("tt")}


async def test_an_error(wire):
    answer = await join(wire, 1, server_assignor="best")
    assert (answer.error_code, answer.assignment) == (Error.UNSUPPORTED_ASSIGNOR, None)


async def test_describe(wire):
    await join(wire, 1, rack_id="r", instance_id="i", server_assignor="range")
    answer = await wire(ConsumerGroupDescribeRequest(group_ids=["g", "none"], include_authorized_operations=True), 0)
    group, missing = answer.groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 1, 1)
    assert (group.assignor_name, group.authorized_operations) == ("range", 328)
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 1)
    assert (member.client_id, member.client_host) == ("client", "/10.1.1.1")
    assert (list(member.subscribed_topic_names), member.subscribed_topic_regex) == (["t"], "")
    for assignment in (member.assignment, member.target_assignment):
        assert [(one.topic_name, list(one.partitions)) for one in assignment.topic_partitions] == [("t", [0, 1, 2, 3])]
    assert (missing.group_id, missing.error_code) == ("none", Error.GROUP_ID_NOT_FOUND)
    (classic,) = (await wire(DescribeGroupsRequest(groups=["g"]), 5)).groups
    assert (classic.error_code, classic.group_state) == (0, "Dead")  # it is of the other kind


@pytest.mark.parametrize(
    ("filters", "listed"),
    [
        ({}, True),
        ({"types_filter": ["Consumer"]}, True),
        ({"types_filter": ["classic"]}, False),
        ({"types_filter": ["classic", "CONSUMER"]}, True),
        ({"states_filter": ["stable"]}, True),
        ({"states_filter": ["Empty", "Assigning"]}, False),
    ],
)
async def test_list(wire, filters, listed):
    await join(wire)
    groups = (await wire(ListGroupsRequest(**filters), 5)).groups
    expected = [("g", "consumer", "Stable", "consumer")] if listed else []
    assert [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in groups] == expected


@pytest.mark.parametrize(("version", "error"), [(8, Error.UNSUPPORTED_VERSION), (9, Error.NONE)])
async def test_commit_by_version(wire, version, error):
    await join(wire)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = OffsetCommitRequest(
        group_id="g",
        member_id="m",
        generation_id_or_member_epoch=1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    answer = await wire(request, version)
    assert answer.topics[0].partitions[0].error_code == error


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, Error.NONE),
        ("m", 1, Error.NONE),
        ("m", 2, Error.STALE_MEMBER_EPOCH),
        ("z", 1, Error.UNKNOWN_MEMBER_ID),
    ],
)
async def test_fetch_as_a_member(wire, member_id, epoch, error):
    await join(wire)
    group = OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
    answer = await wire(OffsetFetchRequest(groups=[group]), 9)
    assert answer.groups[0].error_code == error
