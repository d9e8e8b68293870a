"""Random lives of a group: whatever members do, nothing breaks, nobody waits for ever, and no part has two owners."""

import random

import pytest

from ottla.coordinator.membership import Leaver
from ottla.model import Error, KafkaError


async def check(world, group_id="g"):
    """What must hold at any moment."""
    group = world.groups._runtime.state(0).groups.get(group_id)
    if group is None:
        return
    assert group.leader in group.members or not group.members
    assert all(group.members[member_id].instance_id == instance for instance, member_id in group.static_ids.items())
    assert not set(group.pending) & set(group.members)
    assert group.pending_sync <= set(group.members)
    if group.state.value == "PreparingRebalance":
        assert group.join_deadline is not None
    elif group.state.value == "Stable":
        assignments = [member.assignment for member in group.members.values() if member.assignment]
        assert len(assignments) == len(set(assignments))
    for member in group.members.values():
        parked = member.awaiting_join or member.awaiting_sync
        assert member.deadline is not None or parked


ALLOWED = {
    Error.NONE,
    Error.UNKNOWN_MEMBER_ID,
    Error.ILLEGAL_GENERATION,
    Error.REBALANCE_IN_PROGRESS,
    Error.FENCED_INSTANCE_ID,
}


async def heartbeat_error(member):
    try:
        await member.heartbeat()
    except KafkaError as refused:
        return refused.error
    return Error.NONE


async def act(world, rng, members):
    choice = rng.random()
    member = rng.choice(members)
    if choice < 0.35:
        member.start_join()
    elif choice < 0.6:
        if member.joining is not None and member.joining.done() and not member.joining.cancelled():
            result = member.joining.result()
            parts = {other.member_id: f"{result.generation}:{n}".encode() for n, other in enumerate(result.members)}
            member.start_sync(parts)
    elif choice < 0.8:
        error = await heartbeat_error(member)
        assert error in ALLOWED
        if error not in {Error.NONE, Error.REBALANCE_IN_PROGRESS}:
            member.id = ""
    elif choice < 0.85:
        await world.groups.leave("g", [Leaver(member.id, member.instance)])
        member.id = ""
    elif choice < 0.9:
        member.id = ""  # the client was started again
    elif choice < 0.93:
        world.journal.refuse = KafkaError(Error.NOT_ENOUGH_REPLICAS)
    elif choice < 0.95 and member.joining is not None:
        member.joining.cancel()  # its connection went away
    else:
        await world.advance(rng.choice([100, 2_000, 7_000]))


@pytest.mark.parametrize("seed", range(60))
async def test_a_random_life(make_world, seed):
    rng = random.Random(seed)
    world = make_world(initial_rebalance_delay_ms=rng.choice([0, 1_000]), max_size=rng.choice([3, 100]))
    members = [
        await world.member(
            instance=rng.choice([None, None, f"i{number % 2}"]),
            session_ms=6_000,
            rebalance_ms=rng.choice([3_000, 8_000]),
            protocols=rng.choice([(("a", b""), ("b", b"")), (("b", b""), ("a", b"")), (("b", b""),)]),
        )
        for number in range(5)
    ]
    for _ in range(150):
        await act(world, rng, members)
        if rng.random() < 0.7:
            await world.settle()
        await check(world)
    await world.advance(400_000)  # longer than any timeout
    assert not any(member.waits for member in members)
    assert (await world.groups.describe_group("g")).state in {"Empty", "Dead"}
    await world.restart()
    await world.advance(20_000)  # the record that it is empty may have been refused: then its members are lost once more
    assert (await world.groups.describe_group("g")).members == ()
