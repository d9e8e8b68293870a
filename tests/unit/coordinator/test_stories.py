"""Groups that grow, shrink, fall silent and come back, with the clock in the test's hand."""

import asyncio

import pytest

from ottla.coordinator.membership import Join, Leaver
from ottla.model import Error, KafkaError


async def state_of(world, group="g"):
    return (await world.groups.describe_group(group)).state


async def refusal(awaitable):
    """The error that a call ends in."""
    with pytest.raises(KafkaError) as refused:
        await awaitable
    return refused.value.error


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_members_join_and_get_their_parts(world, make_stable, size):
    members = await make_stable(world, size)
    assert [(await member.synced()).assignment for member in members] == [str(number).encode() for number in range(size)]
    assert await state_of(world) == "Stable"
    for member in members:
        await member.heartbeat()


async def test_only_the_leader_learns_who_the_members_are(world, make_stable):
    members = await make_stable(world, 3)
    joined = [await member.joined() for member in members]
    assert {member.member_id for member in joined[0].members} == {member.id for member in members}
    assert [len(result.members) for result in joined] == [3, 0, 0]
    assert {result.generation for result in joined} == {3}


async def test_a_new_member_is_first_given_its_id_where_its_client_understands_that(world):
    newer, older = await world.member("a", version=4), await world.member("b", version=3)
    assert (await newer.joined()).member_id == newer.id
    assert (await older.joined()).generation == 1
    pending = await world.groups.join(_request(newer, member_id=""))
    assert (pending.error, pending.generation) == (Error.MEMBER_ID_REQUIRED, -1)


def _request(member, **changes):
    values = {
        "group_id": member.group,
        "member_id": member.id,
        "instance_id": member.instance,
        "client_id": "client",
        "client_host": "/h",
        "session_timeout_ms": member.session_ms,
        "rebalance_timeout_ms": member.rebalance_ms,
        "protocol_type": member.protocol_type,
        "protocols": member.protocols,
        "member_id_required": True,
    }
    return Join(**{**values, **changes})


async def test_a_pending_member_holds_the_rebalance_until_it_lapses(world, make_stable):
    (member,) = await make_stable(world, 1)
    await world.groups.join(_request(member, member_id="", session_timeout_ms=6_000))
    member.start_join()
    await world.advance(5_900)
    assert member.waits
    await world.advance(200)
    assert (await member.joined()).generation == 2


async def test_a_pending_member_that_leaves_holds_nobody(world, make_stable):
    (member,) = await make_stable(world, 1)
    pending = await world.groups.join(_request(member, member_id=""))
    member.start_join()
    await world.settle()
    assert member.waits
    assert await world.groups.leave("g", [Leaver(pending.member_id)]) == [Error.NONE]
    assert (await member.joined()).generation == 2


async def test_others_hear_of_a_rebalance_from_their_heartbeat(world, make_stable):
    first, second = await make_stable(world, 2)
    await first.leave()
    assert await refusal(second.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    result = await second.rejoin()
    assert (result.generation, result.leader) == (3, second.id)


async def test_a_silent_member_is_lost_after_its_session_timeout(world, make_stable):
    first, second = await make_stable(world, 2)
    for _ in range(3):
        await world.advance(4_000)
        if await state_of(world) == "Stable":
            await first.heartbeat()
    assert await refusal(first.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    assert await refusal(second.heartbeat()) is Error.UNKNOWN_MEMBER_ID
    assert (await first.rejoin()).generation == 3


async def test_heartbeats_keep_a_member_alive(world, make_stable):
    (member,) = await make_stable(world, 1)
    for _ in range(10):
        await world.advance(9_000)
        await member.heartbeat()


async def test_who_does_not_come_back_in_time_is_out(world, make_stable):
    first, second = await make_stable(world, 2, rebalance_ms=5_000, session_ms=60_000)
    second.protocols = (("range", b"changed"),)
    second.start_join()
    await world.advance(4_900)
    assert second.waits
    await world.advance(200)
    result = await second.joined()
    assert (result.generation, result.leader, len(result.members)) == (3, second.id, 1)
    assert await refusal(first.heartbeat()) is Error.UNKNOWN_MEMBER_ID


async def test_who_joins_but_never_asks_for_its_part_is_out(world):
    first = await world.member(rebalance_ms=5_000, session_ms=60_000)
    second = await world.member(rebalance_ms=5_000, session_ms=60_000)
    await first.rejoin()
    first.start_sync({first.id: b"all"})
    await world.advance(5_100)
    assert await refusal(second.heartbeat()) is Error.UNKNOWN_MEMBER_ID
    assert await state_of(world) == "PreparingRebalance"


async def test_a_member_that_waits_in_join_is_not_lost_however_long_it_takes(world, make_stable):
    first, second = await make_stable(world, 2, rebalance_ms=100_000)
    first.start_join()  # the leader wants a rebalance
    for _ in range(5):
        await world.advance(9_000)
        assert await refusal(second.heartbeat()) is Error.REBALANCE_IN_PROGRESS
    assert first.waits
    await second.rejoin()
    assert (await first.joined()).generation == 3


async def test_a_new_member_that_waits_too_long_is_given_up(world, make_stable):
    first, second = await make_stable(world, 2, rebalance_ms=2_000_000, session_ms=1_000_000)
    third = await world.member(rebalance_ms=2_000_000)
    await world.advance(300_100)
    assert (await third.joined()).error is Error.UNKNOWN_MEMBER_ID
    assert [await refusal(member.heartbeat()) for member in (first, second)] == [Error.REBALANCE_IN_PROGRESS] * 2


async def test_a_follower_with_nothing_new_to_say_gets_the_generation_it_has(world, make_stable):
    _, second = await make_stable(world, 2)
    assert (await second.rejoin()).generation == 2
    assert await state_of(world) == "Stable"


async def test_a_leader_that_joins_again_starts_a_rebalance(world, make_stable):
    first, _ = await make_stable(world, 2)
    first.start_join()
    await world.settle()
    assert await state_of(world) == "PreparingRebalance"


async def test_a_rebalance_cuts_short_those_who_wait_for_their_part(world):
    first = await world.member()
    second = await world.member()
    await first.rejoin()
    second.start_sync()
    await world.member()
    assert (await second.synced()).error is Error.REBALANCE_IN_PROGRESS


async def test_a_decision_that_comes_too_late_is_void(world):
    first = await world.member()
    world.journal.gate.clear()
    first.start_sync({first.id: b"all"})
    await world.settle()
    second = await world.member()
    world.journal.gate.set()
    await world.settle()
    assert (await first.synced()).error is Error.REBALANCE_IN_PROGRESS
    assert (await first.rejoin()).generation == 2
    assert (await second.joined()).generation == 2


async def test_an_assignment_leaves_only_after_the_log_has_it(world):
    first = await world.member()
    world.journal.gate.clear()
    first.start_sync({first.id: b"all"})
    await world.settle()
    assert first.waits
    world.journal.gate.set()
    assert (await first.synced()).assignment == b"all"


async def test_an_assignment_that_cannot_be_stored_is_refused_and_tried_again(world):
    first = await world.member()
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    assert (await first.sync({first.id: b"all"})).error is Error.COORDINATOR_NOT_AVAILABLE
    assert await state_of(world) == "PreparingRebalance"
    await first.rejoin()
    assert (await first.sync({first.id: b"all"})).assignment == b"all"


async def test_several_leave_at_once(world, make_stable):
    first, second = await make_stable(world, 2)
    leavers = [Leaver(first.id), Leaver("nobody"), Leaver(second.id)]
    assert await world.groups.leave("g", leavers) == [Error.NONE, Error.UNKNOWN_MEMBER_ID, Error.NONE]
    assert await state_of(world) == "Empty"
    assert await world.groups.leave("nowhere", leavers[:1]) == [Error.UNKNOWN_MEMBER_ID]


async def test_a_new_group_waits_for_late_comers_but_not_for_ever(make_world):
    world = make_world(initial_rebalance_delay_ms=3_000)
    first = await world.member(rebalance_ms=10_000)
    await world.advance(2_000)
    second = await world.member(rebalance_ms=10_000)
    await world.advance(2_000)
    assert first.waits  # someone came late: the wait begins anew
    await world.advance(2_100)
    assert [(await member.joined()).generation for member in (first, second)] == [1, 1]


async def test_the_initial_delay_ends_with_the_rebalance_timeout(make_world):
    world = make_world(initial_rebalance_delay_ms=3_000)
    members = []
    for _ in range(4):
        members.append(await world.member(rebalance_ms=10_000))
        await world.advance(2_600)
    assert {(await member.joined()).generation for member in members} == {1}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generation": 1}, Error.ILLEGAL_GENERATION),
        ({"generation": 3}, Error.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, Error.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, Error.UNKNOWN_MEMBER_ID),
        ({"protocol": "other"}, Error.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, Error.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "other"}, Error.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, Error.INVALID_GROUP_ID),
        ({"protocol": "range", "protocol_type": "consumer"}, Error.NONE),
    ],
)
async def test_sync_is_checked(world, make_stable, changes, error):
    first, _ = await make_stable(world, 2)
    assert (await first.sync(**changes)).error is error


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_timeout_ms": 5_999}, Error.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, Error.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, Error.INVALID_GROUP_ID),
        ({"group_id": "other"}, Error.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, Error.UNKNOWN_MEMBER_ID),
        ({"protocols": (("other", b""),)}, Error.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, Error.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, Error.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_join_is_checked(world, make_stable, changes, error):
    first, _ = await make_stable(world, 2)
    assert (await world.groups.join(_request(first, **changes))).error is error
    assert await state_of(world) == "Stable"


async def test_a_full_group_takes_nobody_in(make_world, make_stable):
    world = make_world(max_size=2)
    first, _ = await make_stable(world, 2)
    third = await world.member()
    assert (await third.joined()).error is Error.GROUP_MAX_SIZE_REACHED
    assert await state_of(world) == "Stable"
    await first.leave()
    fourth = await world.member()
    assert fourth.waits  # there is room now


async def test_a_broker_that_loses_the_partition_sends_everyone_away(world, make_stable):
    first, second = await make_stable(world, 2)
    first.start_join()
    await world.settle()
    world.journal.leading = False
    world.groups.resign(0)
    assert (await first.joined()).error is Error.NOT_COORDINATOR
    assert await refusal(second.heartbeat()) is Error.NOT_COORDINATOR
    assert (await second.rejoin()).error is Error.NOT_COORDINATOR
    assert (await second.sync()).error is Error.NOT_COORDINATOR
    assert world.groups.list_groups() == []


async def test_a_request_whose_connection_went_away_disturbs_nobody(world, make_stable):
    first, second = await make_stable(world, 2)
    first.start_join()
    await world.settle()
    first.joining.cancel()
    await world.settle()
    assert (await second.rejoin()).generation == 3
    with pytest.raises(asyncio.CancelledError):
        await first.joining


async def test_a_restart_goes_on_with_the_generation(world, make_stable):
    members = await make_stable(world, 3)
    before = await world.groups.describe_group("g")
    await world.restart()
    assert await world.groups.describe_group("g") == before
    for member in members:
        await member.heartbeat()
    assert (await members[1].sync()).assignment == b"1"
    await world.advance(10_100)
    assert await refusal(members[0].heartbeat()) is Error.UNKNOWN_MEMBER_ID  # nobody spoke for a whole session timeout


async def test_a_restart_knows_that_a_group_is_empty(world, make_stable):
    (member,) = await make_stable(world, 1)
    await member.leave()
    await world.settle()
    await world.restart()
    assert await state_of(world) == "Empty"
    again = await world.member()
    assert (await again.joined()).generation == 3


async def test_a_group_that_is_too_great_after_a_restart_is_rebalanced(make_world, make_stable):
    world = make_world()
    await make_stable(world, 3)
    smaller = make_world(max_size=2)
    smaller.journal.batches = world.journal.batches
    await smaller.restart()
    assert await state_of(smaller) == "PreparingRebalance"
