"""Static members: a restart keeps the place, a double is fenced."""

import pytest

from ottla.coordinator.membership import Leaver
from ottla.model import Error, KafkaError


async def static_pair(world, sync_all, **options):
    """Two static members, `a` leads, each with an assignment."""
    first = await world.member(instance="a", **options)
    second = await world.member(instance="b", **options)
    await first.rejoin()
    members = [first, second]
    await sync_all(members)
    return members


async def test_a_restarted_member_takes_its_place_back_without_a_rebalance(world, sync_all):
    _, second = await static_pair(world, sync_all)
    again = await world.member(instance="b")
    result = await again.joined()
    assert (result.error, result.generation, result.skip_assignment) == (Error.NONE, 2, False)
    assert again.id != second.id
    assert (await again.sync()).assignment == b"1"
    assert (await world.groups.describe_group("g")).state == "Stable"
    with pytest.raises(KafkaError) as refused:
        await second.heartbeat()
    assert refused.value.error is Error.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (9, (True, True, 2)),  # it leads, and is told that there is nothing to divide
        (8, (False, False, 0)),  # it would divide anew: the leader is named by its old id
    ],
)
async def test_a_restarted_leader_does_not_divide_the_work_anew(world, sync_all, version, told):
    first, _ = await static_pair(world, sync_all)
    again = await world.member(instance="a", version=version)
    result = await again.joined()
    assert (result.skip_assignment, result.leader == again.id, len(result.members)) == told
    assert result.leader in {again.id, first.id}
    assert (await again.sync()).assignment == b"0"


async def test_a_restart_within_the_session_timeout_is_known_after_the_brokers_restart(world, sync_all):
    await static_pair(world, sync_all)
    again = await world.member(instance="b")
    await world.restart()
    await again.heartbeat()
    assert (await again.sync()).assignment == b"1"


async def test_the_new_id_is_not_told_before_the_log_has_it(world, sync_all):
    _, second = await static_pair(world, sync_all)
    world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    again = await world.member(instance="b")
    assert (await again.joined()).error is Error.COORDINATOR_NOT_AVAILABLE
    await second.heartbeat()  # the place is still that of the old id


async def test_a_double_fences_the_first_while_it_waits(world, sync_all):
    first, second = await static_pair(world, sync_all)
    first.start_join()
    await world.settle()
    double = await world.member(instance="a")
    assert (await first.joined()).error is Error.FENCED_INSTANCE_ID
    assert double.waits
    await second.rejoin()
    assert (await double.joined()).generation == 3


async def test_a_restart_with_another_protocol_rebalances(world, sync_all):
    both = (("range", b""), ("sticky", b""))
    first, _ = await static_pair(world, sync_all, protocols=both)
    await world.member(instance="b", protocols=(("sticky", b""),))
    with pytest.raises(KafkaError) as refused:
        await first.heartbeat()
    assert refused.value.error is Error.REBALANCE_IN_PROGRESS


async def test_a_restart_between_join_and_sync_rebalances(world):
    first = await world.member(instance="a")
    second = await world.member(instance="b")
    await first.rejoin()
    second.start_sync()
    await world.settle()
    again = await world.member(instance="b")
    assert (await second.synced()).error is Error.FENCED_INSTANCE_ID
    assert again.waits
    await first.rejoin()
    assert (await again.joined()).generation == 3


async def test_a_rebalance_does_not_drop_a_static_member_that_is_away(world, sync_all):
    first, second = await static_pair(world, sync_all, rebalance_ms=2_000, session_ms=60_000)
    first.start_join()
    await world.advance(2_100)
    result = await first.joined()
    assert {member.member_id for member in result.members} == {first.id, second.id}


async def test_a_rebalance_waits_for_someone_to_lead(world, sync_all):
    first, second = await static_pair(world, sync_all, rebalance_ms=2_000, session_ms=8_000)
    await world.groups.leave("g", [Leaver("", "a")])
    await world.advance(5_000)
    assert (await world.groups.describe_group("g")).state == "PreparingRebalance"
    await world.advance(4_000)  # now its session is over too
    assert (await world.groups.describe_group("g")).state == "Empty"
    assert first.id != second.id


async def test_an_administrator_removes_a_static_member_by_its_instance_id(world, sync_all):
    first, second = await static_pair(world, sync_all)
    leavers = [Leaver("", "b"), Leaver("", "nobody"), Leaver("wrong", "a"), Leaver(first.id, "a")]
    expected = [Error.NONE, Error.UNKNOWN_MEMBER_ID, Error.FENCED_INSTANCE_ID, Error.NONE]
    assert await world.groups.leave("g", leavers) == expected
    assert second.id not in {member.member_id for member in (await world.groups.describe_group("g")).members}
