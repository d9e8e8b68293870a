"""The handlers, version by version: where an answer, and above all an error, has its place on the wire."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest

import ottla.api.groups  # noqa: F401 - declares the handlers
from ottla.api.registry import ERROR_SHAPES, HANDLERS, LATER, Context
from ottla.metadata.image import BrokerImage, Endpoint, Image, PartitionState, TopicImage
from ottla.metrics import RequestCounters
from ottla.model import Error, KafkaError
from ottla.wire.apis import RESPONSES
from ottla.wire.apis.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.wire.apis.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from ottla.wire.frame import RequestHeader, decode_response
from unit.api.handler_kit import FakePeer

ONE = PartitionState(leader=1, leader_epoch=0, isr=(1,), replicas=(1,))
TOPICS = {name: TopicImage(name, bytes(16), {0: ONE, 1: ONE}) for name in ("t", "__consumer_offsets")}
BROKERS = {1: BrokerImage(1, {FakePeer.listener: Endpoint("localhost", 9092)})}


class Wire:
    """Sends a request through its bytes to its handler, and the answer back through its bytes."""

    def __init__(self, world):
        self.world = world
        self.image = Image(brokers=BROKERS, topics=TOPICS)

    async def __call__(self, request, version):
        peer = FakePeer()
        services = SimpleNamespace(groups=self.world.groups, metadata=SimpleNamespace(image=self.image), broker_id=1)
        header = RequestHeader(request.api_key, version, 1, "client")
        context = Context(services, peer, header, RequestCounters())
        request_type, handler = HANDLERS[request.api_key]
        request, _ = request_type.decoder(version)(request_type.encoder(version)(request), 0)
        try:
            answer = handler(context, request)
            response = await answer if inspect.isawaitable(answer) else answer
            if response is LATER:
                await asyncio.wait_for(peer.settled.wait(), 10)
                return decode_response(RESPONSES[request.api_key], peer.answers[-1], version)[1]
        except KafkaError as problem:
            shape = ERROR_SHAPES.get(request.api_key)
            response = shape(request, problem.error, "") if shape else RESPONSES[request.api_key](error_code=problem.error)
        return type(response).decoder(version)(type(response).encoder(version)(response), 0)[0]


@pytest.fixture
def wire(world):
    return Wire(world)


def join_request(member_id=""):
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )


async def join(wire, version=9):
    await wire.world.groups.partition_of("g")
    answer = await wire(join_request(), version)
    if answer.error_code == Error.MEMBER_ID_REQUIRED:
        answer = await wire(join_request(answer.member_id), version)
    return answer


def commit_request(*partitions, **fields):
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata="m")],
            )
            for name, index in partitions
        ],
        **fields,
    )


@pytest.mark.parametrize("version", range(10))
async def test_a_member_lives_through_every_version(wire, version):
    joined = await join(wire, version)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    )
    assert (await wire(sync, min(version, 5))).assignment == b"all"
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await wire(heartbeat, min(version, 4))).error_code == 0
    described = (await wire(DescribeGroupsRequest(groups=["g"]), min(version, 5))).groups[0]
    member = described.members[0]
    assert (described.group_state, described.protocol_data, member.member_metadata) == ("Stable", "range", b"m")
    assert member.client_host == "/10.1.1.1"
    commit = commit_request(("t", 0), generation_id_or_member_epoch=1, member_id=joined.member_id)
    expected = 0 if version > 0 else Error.UNKNOWN_MEMBER_ID  # version 0 cannot say who commits
    assert (await wire(commit, version)).topics[0].partitions[0].error_code == expected
    leave = LeaveGroupRequest(group_id="g", member_id=joined.member_id, members=[MemberIdentity(member_id=joined.member_id)])
    assert (await wire(leave, min(version, 5))).error_code == 0
    assert (await wire(DescribeGroupsRequest(groups=["g"]), min(version, 5))).groups[0].group_state == "Empty"


async def test_errors_of_join_in_old_versions_have_no_null(wire):
    await wire.world.groups.partition_of("g")
    request = join_request("nobody")
    assert (await wire(request, 6)).protocol_name == ""
    assert (await wire(request, 7)).protocol_name is None


async def test_sync_must_name_the_protocol_from_version_5_on(wire):
    joined = await join(wire)
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await wire(request, 5)).error_code == Error.INCONSISTENT_GROUP_PROTOCOL
    assert (await wire(request, 4)).error_code == 0


@pytest.mark.parametrize("version", range(6))
async def test_who_cannot_leave_is_told_where_its_version_looks(wire, version):
    await join(wire)
    request = LeaveGroupRequest(group_id="g", member_id="nobody", members=[MemberIdentity(member_id="nobody")])
    answer = await wire(request, version)
    if version < 3:
        assert answer.error_code == Error.UNKNOWN_MEMBER_ID
    else:
        assert (answer.error_code, answer.members[0].error_code) == (0, Error.UNKNOWN_MEMBER_ID)


@pytest.mark.parametrize("version", range(7))
async def test_the_coordinator_is_the_leader_of_the_groups_partition(wire, version):
    answer = await wire(FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g", "h"]), version)
    found = answer.coordinators if version >= 4 else [answer]
    assert [(one.error_code, one.node_id, one.host, one.port) for one in found] == [(0, 1, "localhost", 9092)] * len(found)
    assert len(found) == (2 if version >= 4 else 1)


@pytest.mark.parametrize(
    ("key_type", "topics", "error"),
    [
        (0, {}, Error.COORDINATOR_NOT_AVAILABLE),
        (0, {"__consumer_offsets": TopicImage("", b"", {0: PartitionState(-1, 0, (), (1,))})}, Error.COORDINATOR_NOT_AVAILABLE),
        (2, TOPICS, Error.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", [1, 4])
async def test_no_coordinator(wire, version, key_type, topics, error):
    wire.image = Image(brokers=BROKERS, topics=topics)
    answer = await wire(FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g"]), version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.host, found.port) == (error, -1, "", -1)
    assert found.error_message


async def test_offsets_of_partitions_that_do_not_exist_are_refused_alone(wire):
    await wire.world.groups.partition_of("g")
    answer = await wire(commit_request(("t", 0), ("t", 2), ("nowhere", 0)), 8)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [0, 3, 3]
    answer = await wire(commit_request(("nowhere", 0), generation_id_or_member_epoch=7, member_id="x"), 8)
    assert answer.topics[0].partitions[0].error_code == 3
    answer = await wire(commit_request(("t", 0), generation_id_or_member_epoch=7, member_id="x"), 8)
    assert answer.topics[0].partitions[0].error_code == Error.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(8))
async def test_fetching_offsets_of_one_group(wire, version):
    await wire.world.groups.partition_of("g")
    await wire(commit_request(("t", 0)), 8)
    asked = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])])
    (topic,) = (await wire(asked, version)).topics
    missing = Error.UNKNOWN_TOPIC_OR_PARTITION if version == 0 else 0
    assert [(p.committed_offset, p.metadata, p.error_code) for p in topic.partitions] == [(7, "m", 0), (-1, "", missing)]
    if version >= 2:
        (topic,) = (await wire(OffsetFetchRequest(group_id="g", topics=None), version)).topics
        assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [(0, 7)]


@pytest.mark.parametrize("version", [8, 9])
async def test_fetching_offsets_of_many_groups(wire, version):
    await wire.world.groups.partition_of("g")
    await wire(commit_request(("t", 0)), 8)
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id="g", topics=None),
            OffsetFetchRequestGroup(group_id="none", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[1])]),
        ]
    )
    answer = await wire(request, version)
    offsets = [(g.group_id, [(p.partition_index, p.committed_offset) for p in g.topics[0].partitions]) for g in answer.groups]
    assert offsets == [("g", [(0, 7)]), ("none", [(1, -1)])]


@pytest.mark.parametrize("version", range(10))
async def test_a_coordinator_elsewhere_says_so_in_every_version(wire, version):
    await wire.world.groups.partition_of("g")
    wire.world.journal.leading = False
    commit = await wire(commit_request(("t", 0)), version)
    assert commit.topics[0].partitions[0].error_code == Error.NOT_COORDINATOR
    request = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        groups=[OffsetFetchRequestGroup(group_id="g", topics=None)],
    )
    fetch = await wire(request, version)
    where = fetch.topics[0].partitions[0] if version < 2 else fetch if version < 8 else fetch.groups[0]
    assert where.error_code == Error.NOT_COORDINATOR
    assert (await wire(join_request(), version)).error_code == Error.NOT_COORDINATOR
    described = await wire(DescribeGroupsRequest(groups=["g"]), min(version, 5))
    assert described.groups[0].error_code == Error.NOT_COORDINATOR
    deleted = await wire(DeleteGroupsRequest(groups_names=["g"]), min(version, 2))
    assert deleted.results[0].error_code == Error.NOT_COORDINATOR


async def test_deleting_offsets(wire):
    await wire.world.groups.partition_of("g")
    await wire(commit_request(("t", 0)), 8)
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1, 2)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=partitions)])
    answer = await wire(request, 0)
    assert [partition.error_code for partition in answer.topics[0].partitions] == [0, 0, 3]
    request.group_id = "none"
    assert (await wire(request, 0)).error_code == Error.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("states", "types", "shown"),
    [
        ([], [], True),
        (["empty"], ["CLASSIC"], True),
        (["Stable"], [], False),
        ([], ["consumer"], False),
        (["Stable", "Empty"], ["consumer", "classic"], True),
    ],
)
async def test_the_list_is_filtered(wire, states, types, shown):
    await wire.world.groups.partition_of("g")
    await wire(commit_request(("t", 0)), 8)
    listed = await wire(ListGroupsRequest(states_filter=states, types_filter=types), 5)
    assert [(g.group_id, g.group_state, g.group_type) for g in listed.groups] == ([("g", "Empty", "classic")] if shown else [])


async def test_the_list_is_complete_after_a_restart_or_says_that_it_is_not(wire):
    await wire.world.groups.partition_of("g")
    await wire(commit_request(("t", 0)), 8)
    wire.world.start()
    assert [group.group_id for group in (await wire(ListGroupsRequest(), 0)).groups] == ["g"]
    hold = asyncio.Event()
    wire.world._offload = lambda work: hold.wait()
    wire.world.start()
    listing = asyncio.ensure_future(wire(ListGroupsRequest(), 0))
    await wire.world.advance(200)
    assert (await listing).error_code == Error.COORDINATOR_LOAD_IN_PROGRESS


async def test_groups_are_described_and_deleted_one_by_one(wire):
    await wire.world.groups.partition_of("g")
    await wire(commit_request(("t", 0)), 8)
    described = await wire(DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=True), 5)
    assert [(g.group_state, g.error_code, g.authorized_operations) for g in described.groups] == [
        ("Empty", 0, 328),
        ("Dead", 0, 328),
    ]
    deleted = await wire(DeleteGroupsRequest(groups_names=["g", "none"]), 2)
    assert [(r.group_id, r.error_code) for r in deleted.results] == [("g", 0), ("none", Error.GROUP_ID_NOT_FOUND)]


@pytest.mark.parametrize("api_key", sorted(ERROR_SHAPES.keys() & {8, 9, 10, 15, 42}))
def test_an_error_of_the_whole_fits_every_version(api_key):
    request_type, _ = HANDLERS[api_key]
    for version in range(request_type.min_version, request_type.max_version + 1):
        response = ERROR_SHAPES[api_key](request_type(), Error.UNKNOWN_SERVER_ERROR, "words")
        assert RESPONSES[api_key].encoder(version)(response)
