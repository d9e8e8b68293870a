"""Lives of groups of the consumer protocol, told by their clients: what Apache Kafka 3.9.1 answers to the same requests."""

import asyncio

import pytest

from ottla.coordinator.consumer_membership import ConsumerHeartbeat
from ottla.coordinator.offsets import Commit
from ottla.model import Error, KafkaError, TopicPartition
from unit.coordinator.consumer_kit import Consumer, joined, settle

T0 = TopicPartition("t", 0)


async def refused(awaitable):
    with pytest.raises(KafkaError) as refusal:
        await awaitable
    return refusal.value.error


async def describe(world, group="g"):
    return await world.groups.describe_consumer_group(group)


async def state(world, group="g"):
    return (await describe(world, group)).state


# Joining and sharing


async def test_one_member_gets_everything_at_once(world):
    consumer = Consumer(world, "a")
    result = await consumer.join()
    assert (result.epoch, result.interval_ms) == (1, 5_000)
    assert consumer.parts == {"t": [0, 1, 2, 3]}
    assert await state(world) == "Stable"


async def test_a_partition_is_given_to_its_new_owner_when_the_old_one_gave_it_up(world):
    a, b = Consumer(world, "a"), Consumer(world, "b")
    await a.join()
    await b.join()
    assert (b.epoch, b.parts) == (2, {})
    assert (await a.send(1)).epoch == 1  # it is told to keep two, and stays in its epoch until it does
    assert a.parts == {"t": [0, 1]}
    assert (await b.send(2)).assignment is None
    assert await state(world) == "Reconciling"
    assert (await a.beat()).epoch == 2
    await b.send(2)
    assert b.parts == {"t": [2, 3]}
    assert await state(world) == "Stable"


async def test_an_answer_repeats_the_assignment_only_when_it_is_news(world):
    (a,) = await joined(world, "a")
    assert (await a.send(1)).assignment is None
    assert (await a.beat()).assignment is None
    assert (await a.beat(topics=a.topics)).assignment is None
    full = await a.beat(topics=a.topics, rebalance_timeout_ms=30_000)  # it seems to have forgotten everything
    assert full.assignment == a.owned


async def test_who_leaves_hands_on_its_partitions(world):
    a, b = await joined(world, "a", "b")
    assert (await b.leave()).epoch == -1
    assert await state(world) == "Assigning"  # nobody was told yet
    await a.beat()
    assert a.parts == {"t": [0, 1, 2, 3]}
    assert await refused(b.leave()) is Error.UNKNOWN_MEMBER_ID
    await a.leave()
    assert await state(world) == "Empty"


async def test_more_members_than_partitions(world):
    members = await joined(world, *"abcdef")
    await settle(members)
    owned = [number for member in members for number in member.parts.get("t", [])]
    assert sorted(owned) == [0, 1, 2, 3]
    assert await state(world) == "Stable"


async def test_the_coordinator_makes_a_member_id_for_old_clients(world):
    consumer = Consumer(world, "")
    await consumer.join()
    assert consumer.id.startswith("member-")
    await consumer.beat()


# Epochs


async def test_a_member_in_another_epoch_is_fenced(world):
    (a, _b) = await joined(world, "a", "b")
    assert await refused(a.send(7)) is Error.FENCED_MEMBER_EPOCH
    assert await refused(a.send(1)) is Error.FENCED_MEMBER_EPOCH
    assert await refused(a.join()) is Error.FENCED_MEMBER_EPOCH


async def test_an_answer_that_was_lost_is_given_again(world):
    a, b = Consumer(world, "a"), Consumer(world, "b")
    await a.join()
    await b.join()
    await a.send(1)
    holds = a.owned
    await a.beat()
    assert (await a.send(1, owned=holds)).epoch == 2  # it did not hear of epoch 2, and holds nothing that it should not
    (too_much,) = ({topic: frozenset({0, 1, 2}) for topic in holds},)
    assert await refused(a.send(1, owned=too_much)) is Error.FENCED_MEMBER_EPOCH


async def test_the_answer_to_a_join_that_was_lost(world):
    a = Consumer(world, "a")
    first = await a.join()
    assert (await a.join()) == first


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, Error.INVALID_REQUEST),
        ({"instance_id": ""}, Error.INVALID_REQUEST),
        ({"rack_id": ""}, Error.INVALID_REQUEST),
        ({"epoch": -3}, Error.INVALID_REQUEST),
        ({"epoch": 3, "member_id": ""}, Error.INVALID_REQUEST),
        ({"epoch": -1, "member_id": ""}, Error.INVALID_REQUEST),
        ({"epoch": -2}, Error.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, Error.INVALID_REQUEST),
        ({"owned": None}, Error.INVALID_REQUEST),
        ({"owned": {b"t": frozenset({0})}}, Error.INVALID_REQUEST),
        ({"topics": None}, Error.INVALID_REQUEST),
        ({"topics": frozenset()}, Error.INVALID_REQUEST),
        ({"topics": None, "pattern": "("}, Error.INVALID_REQUEST),
        ({"assignor": "best"}, Error.UNSUPPORTED_ASSIGNOR),
        ({"epoch": 5}, Error.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, Error.GROUP_ID_NOT_FOUND),
    ],
)
async def test_requests_that_make_no_sense(world, changes, error):
    await world.groups.partition_of("g")
    fields = {
        "group_id": "g",
        "member_id": "m",
        "epoch": 0,
        "client_id": "c",
        "client_host": "/h",
        "rebalance_timeout_ms": 1,
        "topics": frozenset({"t"}),
        "owned": {},
        **changes,
    }
    assert await refused(world.groups.consumer_heartbeat(ConsumerHeartbeat(**fields))) is error
    assert world.groups.list_groups() == []


async def test_new_clients_make_their_member_id_themselves(world):
    request = ConsumerHeartbeat("g", "", 0, "c", "/h", rebalance_timeout_ms=1, topics=frozenset({"t"}), owned={})
    assert await refused(world.groups.consumer_heartbeat(request, client_makes_id=True)) is Error.INVALID_REQUEST


async def test_a_full_group(make_world):
    world = make_world(consumer_max_size=2)
    await joined(world, "a", "b")
    assert await refused(Consumer(world, "c").join()) is Error.GROUP_MAX_SIZE_REACHED


async def test_the_protocol_may_be_switched_off(make_world):
    world = make_world(consumer_protocol_enabled=False)
    assert await refused(Consumer(world, "a").join()) is Error.UNSUPPORTED_VERSION


# Time


async def test_a_silent_member_is_out(world):
    a, b = await joined(world, "a", "b")
    for _ in range(10):
        await world.advance(5_000)
        await a.beat()
    assert a.parts == {"t": [0, 1, 2, 3]}
    assert await refused(b.beat()) is Error.UNKNOWN_MEMBER_ID


async def test_who_does_not_give_up_in_time_is_out(world):
    a, b = Consumer(world, "a", rebalance_timeout_ms=10_000), Consumer(world, "b")
    await a.join()
    await b.join()
    await a.send(1)
    for _ in range(3):
        await world.advance(3_000)
        await a.send(1)  # it is alive, but says nothing of its partitions
        await b.beat()
    assert b.parts == {}
    await world.advance(3_000)
    assert await refused(a.send(1)) is Error.UNKNOWN_MEMBER_ID
    await b.beat()
    assert b.parts == {"t": [0, 1, 2, 3]}


async def test_a_timeout_that_cannot_be_written_is_tried_again(world):
    await joined(world, "a")
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    await world.advance(50_000)
    assert await state(world) == "Stable"
    await world.advance(50_000)
    assert await state(world) == "Empty"


# Static members


async def test_a_static_member_that_restarts_gets_its_place_back(world):
    a, b = await joined(world, "a", "b")
    static = Consumer(world, "c1", instance="i")
    await static.join()
    await settle([a, b, static])
    parts, epoch = static.parts, static.epoch
    assert parts
    assert (await static.send(-2)).epoch == -2
    assert await refused(static.send(epoch)) is Error.FENCED_MEMBER_EPOCH
    again = Consumer(world, "c2", instance="i")
    await again.join()
    assert (again.parts, again.epoch) == (parts, epoch)  # no rebalance
    assert await refused(static.send(epoch)) is Error.FENCED_INSTANCE_ID
    assert await state(world) == "Stable"
    assert (await a.beat()).assignment is None


async def test_a_static_place_that_is_taken(world):
    static = Consumer(world, "a", instance="i")
    await static.join()
    assert await refused(Consumer(world, "b", instance="i").join()) is Error.UNRELEASED_INSTANCE_ID
    assert await refused(Consumer(world, "b", instance="i").send(1)) is Error.FENCED_INSTANCE_ID
    assert await refused(Consumer(world, "b", instance="i").send(-2)) is Error.FENCED_INSTANCE_ID
    assert await refused(Consumer(world, "a", instance="j").send(1)) is Error.UNKNOWN_MEMBER_ID
    assert (await static.join()).epoch == 1  # its own answer was lost


async def test_a_static_member_that_does_not_come_back_is_out(world):
    a = (await joined(world, "a"))[0]
    static = Consumer(world, "b", instance="i")
    await static.join()
    await settle([a, static])
    await static.send(-2)
    for _ in range(10):
        await world.advance(5_000)
        await a.beat()
    assert a.parts == {"t": [0, 1, 2, 3]}


async def test_a_static_member_that_leaves_for_good(world):
    static = Consumer(world, "a", instance="i")
    await static.join()
    assert (await static.send(-1)).epoch == -1
    other = Consumer(world, "b", instance="i")
    await other.join()
    assert other.parts == {"t": [0, 1, 2, 3]}


# Topics


async def test_topics_that_come_grow_and_go(world):
    (a,) = await joined(world, "a", topics="t u")
    assert a.parts == {"t": [0, 1, 2, 3]}
    world.topics.put("u", 2)
    await a.beat()
    assert (a.epoch, a.parts) == (2, {"t": [0, 1, 2, 3], "u": [0, 1]})
    world.topics.put("u", 3)
    await a.beat()
    assert (a.epoch, a.parts["u"]) == (3, [0, 1, 2])
    world.topics.drop("t")
    await a.beat()
    assert a.parts == {"u": [0, 1, 2]}
    await a.beat()
    assert a.epoch == 4
    world.topics.put("other", 5)
    await a.beat()
    assert (a.epoch, await state(world)) == (4, "Stable")


async def test_a_topic_that_is_made_again_is_another_one(world):
    (a,) = await joined(world, "a")
    world.topics.drop("t")
    world.topics.put("t", 2)
    await settle([a])
    assert a.parts == {"t": [0, 1]}


async def test_a_member_changes_its_subscription(world):
    world.topics.put("u", 2)
    (a,) = await joined(world, "a")
    await a.beat(topics=frozenset({"u"}))
    await a.beat()
    assert (a.epoch, a.parts) == (2, {"u": [0, 1]})


async def test_a_pattern_follows_the_topics(world):
    a = Consumer(world, "a", topics="", pattern="t[0-9]*")
    await a.join()
    assert a.parts == {"t": [0, 1, 2, 3]}
    world.topics.put("t7", 1)
    await a.beat()
    assert a.parts == {"t": [0, 1, 2, 3], "t7": [0]}
    await a.beat(pattern="", topics=frozenset({"t7"}))
    await a.beat()
    assert a.parts == {"t7": [0]}


async def test_the_assignor_that_most_members_ask_for(world):
    world.topics.put("u", 4)
    a, b, c = Consumer(world, "a", topics="t u", assignor="range"), Consumer(world, "b", topics="t u"), None
    await a.join()
    await b.join()
    await settle([a, b])
    assert (await describe(world)).assignor == "range"
    assert a.parts == {"t": [0, 1], "u": [0, 1]}
    c = Consumer(world, "c", topics="t u", assignor="uniform")
    d = Consumer(world, "d", topics="t u", assignor="uniform")
    await c.join()
    await d.join()
    assert (await describe(world)).assignor == "uniform"


# Offsets


async def commit(world, member_id, epoch, **options):
    return (await world.commit("g", [Commit(T0, 5)], member_id=member_id, generation=epoch, **options))[T0]


async def test_only_members_in_their_epoch_commit(world):
    await joined(world, "a", "b")
    assert await commit(world, "a", 2) is Error.NONE
    assert await refused(commit(world, "a", 1)) is Error.STALE_MEMBER_EPOCH
    assert await refused(commit(world, "a", 2, knows_epochs=False)) is Error.UNSUPPORTED_VERSION
    assert await refused(commit(world, "zz", 2)) is Error.UNKNOWN_MEMBER_ID
    assert await refused(commit(world, "", -1)) is Error.UNKNOWN_MEMBER_ID


async def test_anyone_commits_while_the_group_is_empty(world):
    (a,) = await joined(world, "a")
    await a.leave()
    assert await commit(world, "", -1) is Error.NONE


async def test_a_member_fetches_in_its_epoch(world):
    await joined(world, "a")
    await commit(world, "a", 1)
    assert (await world.groups.committed("g"))[T0].offset == 5
    assert (await world.groups.committed("g", member_id="a", member_epoch=1))[T0].offset == 5
    assert await refused(world.groups.committed("g", member_id="a", member_epoch=2)) is Error.STALE_MEMBER_EPOCH
    assert await refused(world.groups.committed("g", member_id="z", member_epoch=1)) is Error.UNKNOWN_MEMBER_ID


async def test_offsets_of_topics_that_are_read_stay(world):
    (a,) = await joined(world, "a")
    await commit(world, "a", 1)
    assert await world.groups.delete_offsets("g", [T0]) == {T0: Error.GROUP_SUBSCRIBED_TO_TOPIC}
    world.clock.advance_ms(world.settings.offsets_retention_ms)
    await world.groups.expire_offsets()
    assert T0 in await world.groups.committed("g")
    await a.leave()
    await world.groups.expire_offsets()
    assert await world.groups.committed("g") == {}
    assert world.groups.list_groups() == []  # nothing was left of it


async def test_removing_a_group(world):
    (a,) = await joined(world, "a")
    await commit(world, "a", 1)
    assert await refused(world.groups.delete_group("g")) is Error.NON_EMPTY_GROUP
    await a.leave()
    assert await world.groups.delete_offsets("g", [T0]) == {T0: Error.NONE}
    await world.groups.delete_group("g")
    assert await refused(world.groups.delete_group("g")) is Error.GROUP_ID_NOT_FOUND
    await world.restart()
    assert world.groups.list_groups() == []


# Restarts and refusals


async def test_a_restart_forgets_nothing(world):
    a, b = Consumer(world, "a"), Consumer(world, "b", instance="i")
    await a.join()
    await b.join()
    await a.send(1)
    before = await describe(world)
    await world.restart()
    assert await describe(world) == before
    assert (await a.beat()).epoch == 2
    await b.beat()
    assert (a.parts, b.parts) == ({"t": [0, 1]}, {"t": [2, 3]})
    await world.restart()
    await world.advance(40_000)
    await a.beat()
    await world.advance(10_000)
    assert [member.member_id for member in (await describe(world)).members] == ["a"]


async def test_what_the_log_refuses_never_was(world):
    a, b = Consumer(world, "a"), Consumer(world, "b")
    await a.join()
    before = await describe(world)
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    assert await refused(b.join()) is Error.COORDINATOR_NOT_AVAILABLE
    assert await describe(world) == before
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    assert await refused(a.leave()) is Error.COORDINATOR_NOT_AVAILABLE
    assert await describe(world) == before
    await world.advance(100_000)  # its session is watched again
    assert await state(world) == "Empty"


async def test_an_answer_waits_for_what_it_rests_on(world):
    a = Consumer(world, "a")
    await a.join()
    world.journal.gate.clear()
    world.topics.put("t", 5)
    first, second = tasks(a.send(1), a.send(2))
    await world.settle()
    assert not first.done()
    assert not second.done()  # it needs no record, but what it says is not safe yet
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    world.journal.gate.set()
    await world.settle()
    assert (error_of(first), error_of(second)) == (Error.COORDINATOR_NOT_AVAILABLE, Error.COORDINATOR_NOT_AVAILABLE)
    assert (await a.send(1)).epoch == 2


async def test_a_coordinator_that_is_elsewhere_by_now(world):
    (a,) = await joined(world, "a")
    world.journal.gate.clear()
    (leaving,) = tasks(a.leave())
    await world.settle()
    world.groups.resign(0)
    world.journal.refuse = KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
    world.journal.gate.set()
    await world.settle()
    assert error_of(leaving) is Error.NOT_COORDINATOR
    await world.groups.partition_of("g")  # it is here again, as the log has it
    assert (await a.send(1)).epoch == 1
    for _ in range(12):
        await world.advance(10_000)
        await a.beat()
    assert await state(world) == "Stable"


async def test_records_that_are_too_large_are_the_brokers_problem(world):
    world.journal.refuse = KafkaError(Error.MESSAGE_TOO_LARGE)
    assert await refused(Consumer(world, "a").join()) is Error.UNKNOWN_SERVER_ERROR


def tasks(*coroutines):
    return [asyncio.ensure_future(coroutine) for coroutine in coroutines]


def error_of(task):
    return task.exception().error
