"""Groups that move from one protocol to the other while they work, and classic members inside consumer groups."""

import pytest

from ottla.coordinator.membership import Leaver
from ottla.coordinator.offsets import Commit
from ottla.model import Error, KafkaError, TopicPartition
from ottla.wire.apis.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartitions
from ottla.wire.schema import decode_versioned, encode_versioned
from unit.coordinator.conftest import Member
from unit.coordinator.consumer_kit import Consumer, settle

T0 = TopicPartition("t", 0)


def subscription(*owned, topics=("t",), generation=-1):
    parts = [TopicPartitions(topic="t", partitions=owned)] if owned else []
    value = ConsumerProtocolSubscription(topics=topics, owned_partitions=parts, generation_id=generation)
    return (("coop", encode_versioned(value, 2)),)


def assignment(*numbers):
    parts = [TopicPartitions(topic="t", partitions=numbers)] if numbers else []
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=parts), 2)


def numbers(result):
    assert result.error is Error.NONE
    topics = decode_versioned(ConsumerProtocolAssignment, result.assignment).assigned_partitions
    return [number for topic in topics for number in topic.partitions]


async def describe(world):
    return await world.groups.describe_consumer_group("g")


def kinds(world):
    return [(group.type, group.state) for group in world.groups.list_groups()]


async def refused(awaitable):
    with pytest.raises(KafkaError) as refusal:
        await awaitable
    return refusal.value.error


async def classic_pair(world):
    """A stable classic group: the first member has 0 and 1, the second 2 and 3."""
    first = await world.member(protocols=subscription())
    second = await world.member(protocols=subscription())
    first.start_join()
    await world.settle()
    assert (await first.joined()).leader == first.id
    await second.joined()
    second.start_sync()
    first.start_sync({first.id: assignment(0, 1), second.id: assignment(2, 3)})
    assert numbers(await first.synced()) == [0, 1]
    assert numbers(await second.synced()) == [2, 3]
    return first, second


async def rejoin(member, *owned):
    """A cooperative client joins again with what it holds, and asks for what it shall have."""
    member.protocols = subscription(*owned, generation=member.generation)
    joined = await member.rejoin()
    assert joined.error is Error.NONE
    assert joined.leader == ""  # there is none: the coordinator divides the work
    return numbers(await member.sync())


# Upgrade


async def test_a_group_is_upgraded_member_by_member(world):
    first, second = await classic_pair(world)
    await world.commit("g", [Commit(T0, 7)], member_id=first.id, generation=first.generation)
    new = Consumer(world, "new")
    await new.join()
    assert kinds(world) == [("consumer", "Reconciling")]
    assert (new.epoch, new.parts) == (first.generation + 1, {})  # nothing is free yet
    assert (await world.groups.committed("g"))[T0].offset == 7
    # The classic members hear of it, keep what they shall keep, and give the rest up in a second step.
    assert await refused(second.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    kept = await rejoin(second, 2, 3)
    assert set(kept) < {2, 3}
    assert await refused(second.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    assert await rejoin(second, *kept) == kept
    await second.heartbeat()
    await new.beat()
    (given,) = new.parts["t"]
    assert given in {2, 3}
    # One classic client is replaced after the other.
    assert await rejoin(first, 0, 1) == [0, 1]
    assert await second.leave() == [Error.NONE]
    other = Consumer(world, "other")
    await other.join()
    assert await refused(first.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    assert await first.leave() == [Error.NONE]
    await settle([new, other])
    assert sorted(new.parts["t"] + other.parts["t"]) == [0, 1, 2, 3]
    assert kinds(world) == [("consumer", "Stable")]


async def test_an_upgrade_in_the_midst_of_a_rebalance(world):
    first, second = await classic_pair(world)
    first.protocols = subscription(0, 1, generation=first.generation)
    first.start_join()
    await world.settle()
    assert first.waits  # for the second one
    new = Consumer(world, "new")
    await new.join()
    assert (await first.joined()).error is Error.REBALANCE_IN_PROGRESS
    assert new.parts == {}
    assert await rejoin(first, 0, 1) == [0, 1]
    kept = await rejoin(second, 2, 3)
    await rejoin(second, *kept)
    await new.beat()
    assert len(new.parts["t"]) == 1


async def test_an_upgrade_when_an_assignment_was_refused_counts_what_members_say_they_hold(world):
    first, second = await classic_pair(world)
    for member, owned in ((first, (0, 1)), (second, (2, 3))):
        member.protocols = subscription(*owned, generation=member.generation)
        member.start_join()
    await world.settle()
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    second.start_sync()
    assert (await first.sync({first.id: assignment(0, 1), second.id: assignment(2, 3)})).error is not Error.NONE
    new = Consumer(world, "new")
    await new.join()
    assert new.parts == {}


async def test_an_upgrade_over_a_restart(world):
    first, _second = await classic_pair(world)
    new = Consumer(world, "new")
    await new.join()
    before = await describe(world)
    await world.restart()
    assert kinds(world) == [("consumer", "Reconciling")]
    assert await describe(world) == before
    assert await rejoin(first, 0, 1) == [0, 1]


async def test_an_upgrade_that_the_log_refuses(world):
    first, second = await classic_pair(world)
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    assert await refused(Consumer(world, "new").join()) is Error.COORDINATOR_NOT_AVAILABLE
    assert kinds(world) == [("classic", "Stable")]
    await first.heartbeat()
    await second.heartbeat()


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
async def test_an_upgrade_that_is_not_allowed(make_world, policy):
    world = make_world(consumer_migration_policy=policy)
    first, _second = await classic_pair(world)
    assert await refused(Consumer(world, "new").join()) is Error.GROUP_ID_NOT_FOUND
    await first.heartbeat()


async def test_a_group_of_something_else_is_not_upgraded(world):
    connect = await world.member(protocol_type="connect")
    await connect.joined()
    assert await refused(Consumer(world, "new").join()) is Error.GROUP_ID_NOT_FOUND


async def test_members_whose_metadata_cannot_be_read_stay_classic(world):
    member = await world.member(protocols=(("range", b"?"),))
    await member.joined()
    assert await refused(Consumer(world, "new").join()) is Error.GROUP_ID_NOT_FOUND


async def test_a_static_client_moves_over(world):
    first = await world.member(protocols=subscription(), instance="i")
    await first.joined()
    await first.sync({first.id: assignment(0, 1, 2, 3)})
    new = Consumer(world, "new", instance="i")  # classic static clients do not say good-bye
    await new.join()
    assert new.parts == {"t": [0, 1, 2, 3]}
    assert await refused(first.heartbeat()) is Error.FENCED_INSTANCE_ID
    assert [member.member_id for member in (await describe(world)).members] == ["new"]


# Downgrade


async def test_when_the_last_of_the_new_protocol_goes_the_group_is_classic_again(world):
    new = Consumer(world, "new")
    await new.join()
    old = Member(world, "g", protocols=subscription())
    assert (await old.rejoin()).error is Error.NONE
    assert numbers(await old.sync()) == []
    await settle([new])
    assert await refused(old.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    held = await rejoin(old)
    assert len(held) == 2
    await world.commit("g", [Commit(T0, 7)], member_id=old.id, generation=old.generation)
    await new.leave()
    assert kinds(world) == [("classic", "PreparingRebalance")]
    assert await refused(old.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    old.protocols = subscription(*held, generation=old.generation)
    joined = await old.rejoin()
    assert (joined.leader, joined.generation) == (old.id, old.generation)
    assert numbers(await old.sync({old.id: assignment(0, 1, 2, 3)})) == [0, 1, 2, 3]
    assert kinds(world) == [("classic", "Stable")]
    await world.restart()
    assert kinds(world) == [("classic", "Stable")]
    assert (await world.groups.committed("g"))[T0].offset == 7


async def test_a_downgrade_because_of_a_timeout(world):
    new = Consumer(world, "new")
    await new.join()
    old = Member(world, "g", protocols=subscription(), session_ms=30_000)
    await old.rejoin()
    await old.sync()
    for _ in range(5):
        await world.advance(10_000)
        try:
            await old.heartbeat()
        except KafkaError as refusal:
            error = refusal.error
    assert error is Error.REBALANCE_IN_PROGRESS
    assert kinds(world) == [("classic", "PreparingRebalance")]


async def test_a_downgrade_that_the_log_refuses(world):
    new = Consumer(world, "new")
    await new.join()
    old = Member(world, "g", protocols=subscription())
    await old.rejoin()
    await old.sync()
    before = await describe(world)
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    assert await refused(new.leave()) is Error.COORDINATOR_NOT_AVAILABLE
    after = await describe(world)
    assert (after.state, after.epoch) == (before.state, before.epoch)
    assert set(after.members) == set(before.members)


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
async def test_a_downgrade_that_is_not_allowed(make_world, policy):
    world = make_world(consumer_migration_policy=policy)
    new = Consumer(world, "new")
    await new.join()
    old = Member(world, "g", protocols=subscription())
    await old.rejoin()
    await old.sync()
    await new.leave()
    assert kinds(world) == [("consumer", "Assigning")]
    assert await rejoin(old) == [0, 1, 2, 3]  # it is served as before


# Empty groups


@pytest.mark.parametrize("policy", ["disabled", "bidirectional"])
async def test_an_empty_group_goes_over_in_either_direction(make_world, policy):
    world = make_world(consumer_migration_policy=policy)
    new = Consumer(world, "new")
    await new.join()
    await world.commit("g", [Commit(T0, 7)], member_id="new", generation=1)
    await new.leave()
    old = await world.member(protocols=subscription())
    assert (await old.joined()).error is Error.NONE
    assert [kind for kind, _ in kinds(world)] == ["classic"]
    await old.sync({old.id: assignment(0)})
    await old.leave()
    await new.join()
    assert kinds(world) == [("consumer", "Stable")]
    assert (await world.groups.committed("g"))[T0].offset == 7
    await world.restart()
    assert kinds(world) == [("consumer", "Stable")]


async def test_offsets_of_a_simple_consumer_become_the_groups(world):
    await world.groups.partition_of("g")
    await world.commit("g", [Commit(T0, 7)])
    await Consumer(world, "new").join()
    assert (await world.groups.committed("g"))[T0].offset == 7
    await world.restart()
    assert kinds(world) == [("consumer", "Stable")]


# Classic members inside


async def mixed_group(world, **options):
    new = Consumer(world, "new")
    await new.join()
    old = Member(world, "g", protocols=subscription(), **options)
    assert (await old.rejoin()).error is Error.NONE
    return new, old


async def test_what_classic_requests_are_refused_with(world):
    new, old = await mixed_group(world)
    await old.sync()
    assert (await old.sync(generation=77)).error is Error.ILLEGAL_GENERATION
    assert (await old.sync(member_id="new")).error is Error.UNKNOWN_MEMBER_ID
    assert (await old.sync(protocol="range")).error is Error.INCONSISTENT_GROUP_PROTOCOL
    assert (await old.sync(protocol_type="connect")).error is Error.INCONSISTENT_GROUP_PROTOCOL
    assert await refused(world.groups.heartbeat("g", old.id, None, 77)) is Error.ILLEGAL_GENERATION
    assert await refused(world.groups.heartbeat("g", "new", None, new.epoch)) is Error.UNKNOWN_MEMBER_ID
    assert await world.groups.leave("g", [Leaver("new"), Leaver("who")]) == [Error.UNKNOWN_MEMBER_ID] * 2
    for changes in ({"protocol_type": "connect"}, {"protocols": (("other", b""),)}, {"protocols": (("coop", b"?"),)}):
        stranger = Member(world, "g", **{"protocols": subscription(), **changes})
        assert (await stranger.rejoin()).error is Error.INCONSISTENT_GROUP_PROTOCOL


async def test_a_member_that_was_removed_and_still_claims_partitions_begins_anew(world):
    _new, old = await mixed_group(world)
    old.id = "long gone"
    old.protocols = subscription(0, 1, generation=5)
    assert (await old.rejoin()).error is Error.UNKNOWN_MEMBER_ID


async def test_generations_of_classic_members_count_for_commits(world):
    _new, old = await mixed_group(world)
    commits = [Commit(T0, 7)]
    assert (await world.commit("g", commits, member_id=old.id, generation=old.generation, knows_epochs=False)) == {
        T0: Error.NONE
    }
    assert await refused(world.commit("g", commits, member_id=old.id, generation=77)) is Error.ILLEGAL_GENERATION


async def test_a_classic_member_that_never_asks_for_its_assignment_is_out(world):
    new, old = await mixed_group(world, session_ms=100_000, rebalance_ms=20_000)
    for _ in range(5):
        await world.advance(5_000)
        await new.beat()
    assert (await old.sync()).error is Error.UNKNOWN_MEMBER_ID


async def test_a_classic_member_that_does_not_join_again_is_out(world):
    new, old = await mixed_group(world, session_ms=100_000, rebalance_ms=20_000)
    await old.sync()
    await settle([new])
    for _ in range(4):
        assert await refused(old.heartbeat()) is Error.REBALANCE_IN_PROGRESS
        await world.advance(5_000)
        await new.beat()
    assert await refused(old.heartbeat()) is Error.UNKNOWN_MEMBER_ID
    assert new.parts == {"t": [0, 1, 2, 3]}


async def test_a_static_classic_member_restarts_inside_a_consumer_group(world):
    new, old = await mixed_group(world, instance="i")
    await old.sync()
    await settle([new])
    held = await rejoin(old)
    again = Member(world, "g", protocols=subscription(), instance="i")
    assert (await again.rejoin()).error is Error.NONE
    assert numbers(await again.sync()) == held
    assert await refused(old.heartbeat()) is Error.FENCED_INSTANCE_ID
    assert (await old.rejoin()).error is Error.FENCED_INSTANCE_ID


async def test_a_full_group_takes_no_classic_member(make_world):
    world = make_world(consumer_max_size=1)
    await Consumer(world, "new").join()
    old = Member(world, "g", protocols=subscription())
    assert (await old.rejoin()).error is Error.GROUP_MAX_SIZE_REACHED
