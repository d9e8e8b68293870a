"""What the controller decides, as tables: failures, returns, disks, leave, imbalance, deletion. No clock, no store."""

from __future__ import annotations

import pytest

from ottla.controller import alteration, deletion, election, state
from ottla.controller.channels import Stop
from ottla.metadata.image import BrokerImage
from ottla.metadata.znodes import PartitionStateNode, TopicNode
from ottla.model import LEADER_DURING_DELETE, NO_LEADER, Error, TopicPartition
from ottla.replication.isr import IsrOutcome, IsrProposal

TP = TopicPartition("t", 0)
ID = bytes(range(16))


def cluster(live: set[int], isr: tuple[int, ...], leader: int, epoch: int = 5) -> state.ClusterState:
    made = state.ClusterState(7, {broker: BrokerImage(broker, {}, None, 100 + broker) for broker in sorted(live)})
    made.topics["t"] = TopicNode("t", ID, {0: (1, 2, 3)})
    made.apply(state.WriteState(TP, PartitionStateNode(leader, epoch, isr, 6), None), version=4)
    return made


def settled(world: state.ClusterState, unclean: bool = False) -> tuple[int, tuple[int, ...]] | None:
    """Leader and ISR that are written, if something is."""
    actions = state.settled(world, [TP], {"t"} if unclean else ())
    if not actions:
        return None
    (action,) = actions
    assert (action.version, action.node.leader_epoch, action.node.controller_epoch) == (4, 6, 7)
    return action.node.leader, action.node.isr


@pytest.mark.parametrize(
    ("live", "isr", "leader", "unclean", "expected"),
    [
        ({1, 2, 3}, (1, 2, 3), 1, False, None),  # nothing happened
        ({2, 3}, (1, 2, 3), 1, False, (2, (2, 3))),  # the leader failed
        ({2, 3}, (1, 3), 1, False, (3, (3,))),  # 2 is not in sync
        ({1, 2}, (1, 2, 3), 1, False, (1, (1, 2))),  # a follower failed: a new epoch without it
        ({1, 2}, (1, 2), 1, False, None),  # it was not in sync anyway
        ({2, 3}, (1,), 1, False, (NO_LEADER, (1,))),  # only 1 has everything: it stays in the ISR
        ({2, 3}, (1,), 1, True, (2, (2,))),  # unless records may be lost
        ({3}, (1, 2), 1, False, (NO_LEADER, (1, 2))),  # both had everything when they failed: either may come back
        (set(), (1,), 1, True, (NO_LEADER, (1,))),
        ({2, 3}, (1,), NO_LEADER, False, None),  # still none
        ({1, 2, 3}, (1,), NO_LEADER, False, (1, (1,))),  # it is back
        ({2}, (1, 2), NO_LEADER, False, (2, (2,))),  # one of the two is back
        ({2, 3}, (1,), NO_LEADER, True, (2, (2,))),  # nobody in sync is back, but it is allowed now
    ],
)
def test_failures_and_returns(
    live: set[int], isr: tuple[int, ...], leader: int, unclean: bool, expected: tuple[int, tuple[int, ...]] | None
) -> None:
    assert settled(cluster(live, isr, leader), unclean) == expected


@pytest.mark.parametrize(
    ("offline", "isr", "expected"),
    [
        (1, (1, 2, 3), (2, (2, 3))),  # the leader's disk failed
        (3, (1, 2, 3), (1, (1, 2))),  # a follower's
        (1, (1,), (NO_LEADER, (1,))),
        (2, (1, 3), None),
    ],
)
def test_failed_disks(offline: int, isr: tuple[int, ...], expected: tuple[int, tuple[int, ...]] | None) -> None:
    world = cluster({1, 2, 3}, isr, 1)
    world.offline[offline] = {TP}
    assert settled(world) == expected


@pytest.mark.parametrize(
    ("restarted", "isr", "leader", "expected"),
    [
        ({1}, (1, 2, 3), 1, (2, (2, 3))),  # the leader may have lost something, the others have everything
        ({3}, (1, 2, 3), 1, (1, (1, 2))),
        ({1}, (1,), 1, (1, (1,))),  # nobody else: it leads on, in a new epoch
        ({1, 2, 3}, (2, 1, 3), 2, (2, (2, 1, 3))),  # the whole cluster was started again
        ({1}, (1,), NO_LEADER, (1, (1,))),
    ],
)
def test_brokers_that_were_started_again_before_anybody_looked(
    restarted: set[int], isr: tuple[int, ...], leader: int, expected: tuple[int, tuple[int, ...]]
) -> None:
    world = cluster({1, 2, 3}, isr, leader)
    world.restarted[TP] = restarted
    assert settled(world) == expected
    for action in state.settled(world, [TP]):
        world.apply(action, 5)
    assert state.settled(world, [TP]) == [], "once"


def test_who_is_about_to_leave_leads_nothing_new() -> None:
    world = cluster({2, 3}, (1, 2, 3), 1)
    world.shutting_down = {2}
    assert settled(world) == (3, (3,))
    world.shutting_down = {2, 3}
    assert settled(world) == (NO_LEADER, (2, 3))


@pytest.mark.parametrize(
    ("live", "isr", "leader", "expected"),
    [
        ({2, 3}, (1,), 1, {"t"}),
        ({2, 3}, (1, 2), 1, set()),  # a clean one is there
        (set(), (1,), 1, set()),  # nobody is there at all
        ({1, 2}, (1,), 1, set()),  # there is a leader
        ({2}, (1,), NO_LEADER, {"t"}),
    ],
)
def test_whose_settings_are_asked_for(live: set[int], isr: tuple[int, ...], leader: int, expected: set[str]) -> None:
    assert state.wanting_unclean(cluster(live, isr, leader), [TP]) == expected


def test_partitions_without_a_state_get_their_first_leader() -> None:
    world = state.ClusterState(7, {1: BrokerImage(1, {}), 2: BrokerImage(2, {})})
    world.topics["t"] = TopicNode("t", ID, {0: (2, 1), 1: (9,)})
    partitions = list(world.partitions())
    assert state.settled(world, partitions) == [state.WriteState(TP, PartitionStateNode(2, 0, (2, 1), 7), None)]
    assert world.image_of("t").partitions[1].leader == NO_LEADER
    assert world.leaderless() == partitions


@pytest.mark.parametrize(
    ("isr", "leader", "leaving", "expected"),
    [
        ((1, 2, 3), 1, 1, (2, (2, 3))),  # what it leads moves
        ((1, 2, 3), 1, 3, (1, (1, 2))),  # what it follows goes on without it
        ((1, 2), 1, 3, None),  # it was not in sync
        ((1,), 1, 1, None),  # nobody could take over
        ((3,), NO_LEADER, 3, None),  # nor here: the last member stays
    ],
)
def test_leave(isr: tuple[int, ...], leader: int, leaving: int, expected: tuple[int, tuple[int, ...]] | None) -> None:
    world = cluster({1, 2, 3}, isr, leader)
    world.shutting_down = {leaving}
    actions = state.shut_down(world, leaving)
    assert [(action.node.leader, action.node.isr) for action in actions] == ([expected] if expected else [])
    for action in actions:
        world.apply(action, 5)
    assert state.still_led(world, leaving) == ([TP] if isr == (1,) else [])


def test_two_that_leave_do_not_hand_over_to_each_other() -> None:
    world = cluster({1, 2, 3}, (1, 2), 1)
    world.shutting_down = {1, 2}
    assert state.shut_down(world, 1) == []
    assert state.still_led(world, 1) == [TP]


def test_a_single_replica_is_not_moved() -> None:
    world = cluster({1, 2, 3}, (1,), 1)
    world.topics["t"] = TopicNode("t", ID, {0: (1,)})
    assert (state.shut_down(world, 1), state.still_led(world, 1)) == ([], [])


def test_a_forgotten_topic_leaves_nothing() -> None:
    world = cluster({1}, (1,), 1)
    deletion.mark(world, "t")
    world.forget("t")
    assert (world.topics, world.states, world.state_versions, world.deleting) == ({}, {}, {}, {})


# ---- preferred leaders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaders", "percentage", "expected"),
    [
        ([(1, 1)] * 10, 10, set()),
        ([(1, 1)] * 9 + [(1, 2)], 10, set()),  # exactly the bound is allowed
        ([(1, 1)] * 8 + [(1, 2)] * 2, 10, {1}),
        ([(1, 2)], 0, {1}),
        ([(1, 1)], 0, set()),
        ([(1, 2), (2, 2)], 10, {1}),
    ],
)
def test_imbalance(leaders: list[tuple[int, int]], percentage: int, expected: set[int]) -> None:
    assert election.imbalanced(leaders, percentage) == expected


def test_only_what_can_go_back_goes_back() -> None:
    world = state.ClusterState(7, {broker: BrokerImage(broker, {}) for broker in (1, 2)})
    world.topics["t"] = TopicNode("t", ID, dict.fromkeys(range(6), (1, 2)), adding={4: (2,)})
    world.topics["gone"] = TopicNode("gone", ID, {0: (1, 2)})
    world.topics["dead"] = TopicNode("dead", ID, {0: (3, 2)})
    for partition, isr in enumerate([(1, 2), (2,), (1, 2), (1, 2), (1, 2), (1, 2)]):
        leader = 1 if partition == 2 else 2
        world.apply(state.WriteState(TopicPartition("t", partition), PartitionStateNode(leader, 1, isr, 6), None), 0)
    world.apply(state.WriteState(TopicPartition("gone", 0), PartitionStateNode(2, 1, (1, 2), 6), None), 0)
    world.apply(state.WriteState(TopicPartition("dead", 0), PartitionStateNode(2, 1, (2,), 6), None), 0)
    deletion.mark(world, "gone")
    world.offline[1] = {TopicPartition("t", 5)}
    assert [tp.partition for tp in state.to_preferred(world, 10)] == [0, 3], "in sync, not moving, its disk is well"
    world.shutting_down = {1}
    assert state.to_preferred(world, 10) == []


# ---- what a leader wishes ------------------------------------------------------------------------------------------------


def wish(isr: tuple[int, ...], **more: object) -> IsrProposal:
    fields: dict[str, object] = {"tp": TP, "topic_id": ID, "leader_epoch": 5, "version": 4} | more
    return IsrProposal(isr=isr, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sender", "proposal", "expected"),
    [
        (1, wish((1,)), Error.NONE),
        (1, wish((1, 2, 3), broker_epochs={1: 101, 2: 102, 3: 103}), Error.NONE),
        (1, wish((1, 2, 3), broker_epochs={3: -1}), Error.NONE),  # not known to the leader
        (1, wish((1, 2, 3), broker_epochs={3: 99}), Error.INELIGIBLE_REPLICA),  # seen in an earlier life
        (1, wish((1, 2, 4)), Error.INELIGIBLE_REPLICA),  # not alive
        (1, wish((1, 2, 5)), Error.INELIGIBLE_REPLICA),  # about to leave
        (1, wish((1, 2, 6)), Error.INELIGIBLE_REPLICA),  # its disk failed
        (1, wish((2, 3)), Error.INVALID_REQUEST),  # without itself
        (2, wish((2, 3)), Error.INVALID_REQUEST),  # not the leader
        (1, wish((1, 9)), Error.INVALID_REQUEST),  # not a replica
        (1, wish((1, 2, 2)), Error.NONE),  # what is there already, told clumsily
        (1, wish((1, 3, 3)), Error.INVALID_REQUEST),
        (1, wish((1,), leader_epoch=4), Error.FENCED_LEADER_EPOCH),
        (1, wish((1,), leader_epoch=6), Error.NOT_CONTROLLER),  # it has heard of more than we have
        (1, wish((1,), version=3), Error.INVALID_UPDATE_VERSION),
        (1, wish((1,), version=5), Error.NOT_CONTROLLER),
        (1, wish((1, 2), version=3), Error.NONE),  # said again, for the answer was lost
        (1, wish((1,), topic_id=b"x" * 16), Error.UNKNOWN_TOPIC_ID),
        (1, wish((1,), topic_id=bytes(16)), Error.NONE),  # named by its name
        (1, wish((1,), tp=TopicPartition("t", 9)), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (1, wish((1,), tp=TopicPartition("u", 0), topic_id=bytes(16)), Error.UNKNOWN_TOPIC_OR_PARTITION),
        (1, wish((1,), tp=TopicPartition("gone", 0), topic_id=bytes(16)), Error.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_wishes(sender: int, proposal: IsrProposal, expected: Error) -> None:
    world = cluster({1, 2, 3, 5, 6}, (1, 2), 1)
    world.topics["t"] = TopicNode("t", ID, {0: (1, 2, 3, 4, 5, 6)})
    world.topics["gone"] = TopicNode("gone", ID, {0: (1, 2)})
    world.apply(state.WriteState(TopicPartition("gone", 0), PartitionStateNode(1, 5, (1, 2), 6), None), 4)
    deletion.mark(world, "gone")
    world.shutting_down = {5}
    world.offline[6] = {TP}
    judgement = alteration.judged(world, sender, proposal)
    if isinstance(judgement, IsrOutcome):
        assert judgement.error is expected
        if expected is Error.NONE:
            assert judgement == IsrOutcome(Error.NONE, 1, 5, (1, 2), 4)
    else:
        assert expected is Error.NONE
        assert judgement == state.WriteState(TP, PartitionStateNode(1, 5, proposal.isr, 7), 4), "the epoch stays"


# ---- deletion ------------------------------------------------------------------------------------------------------------


def test_a_deletion_waits_for_every_replica() -> None:
    world = cluster({1, 2, 3}, (1, 2), 1)
    world.topics["t"] = TopicNode("t", ID, {0: (1, 2), 1: (2,)}, removing={1: (3,)})
    deletion.mark(world, "t")
    assert list(world.partitions()) == []
    assert not world.knows(TP)
    assert {one.leader for one in world.image_of_deleted("t").partitions.values()} == {LEADER_DURING_DELETE}
    assert deletion.stops(world, ["t"], 1) == [Stop(TP, 5, True)]
    assert deletion.stops(world, ["t"], 2) == [Stop(TP, 5, True), Stop(TopicPartition("t", 1), -1, True)]
    assert deletion.stops(world, ["t"], 3) == [Stop(TopicPartition("t", 1), -1, True)], "a replica that was leaving too"
    other = TopicPartition("t", 1)
    assert deletion.deleted(world, 1, [TP, TopicPartition("u", 0)]) == []
    assert deletion.stops(world, ["t"], 1) == []
    assert deletion.deleted(world, 2, [TP, other]) == []
    assert deletion.deleted(world, 3, [other]) == ["t"]
