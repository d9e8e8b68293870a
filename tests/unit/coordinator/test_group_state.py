"""The group as data: who may speak, which protocol wins, and what survives being written down."""

import pytest

from ottla.coordinator.group_state import Group, Member, State
from ottla.coordinator.subscriptions import subscribed_topics
from ottla.model import Error, KafkaError
from ottla.wire.apis.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.schema import encode_versioned


def subscription(*topics: str, version: int = 1) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=topics), version)


def group_of(*protocols: str, state: State = State.STABLE) -> Group:
    """One member per word; each letter is a protocol, in order of preference."""
    group = Group("g", state=state, protocol_type="consumer")
    for number, word in enumerate(protocols):
        group.add(Member(f"m{number}", None, "c", "/h", 60_000, 10_000, tuple((letter, b"") for letter in word)))
    return group


@pytest.mark.parametrize(
    ("members", "chosen"),
    [
        (["ab"], "a"),
        (["ab", "ba", "ba"], "b"),  # most votes
        (["ab", "b"], "b"),  # a is not spoken by all, so the vote for it counts for b
        (["abc", "cba", "bac"], "a"),  # all equal: who was voted for first
        (["xab", "xba", "xba", "ba"], "b"),  # the favourite of three is not spoken by the fourth
    ],
)
def test_protocol_is_chosen_by_vote(members: list[str], chosen: str) -> None:
    assert group_of(*members).select_protocol() == chosen


@pytest.mark.parametrize(
    ("members", "protocol_type", "names", "allowed"),
    [
        (["ab", "b"], "consumer", "b", True),
        (["ab", "b"], "consumer", "a", False),  # not common to all
        (["ab", "b"], "connect", "b", False),
        ([], "connect", "a", True),  # nobody is there to disagree
        ([], "", "a", False),
        ([], "consumer", "", False),
    ],
)
def test_who_may_join(members: list[str], protocol_type: str, names: str, allowed: bool) -> None:
    assert group_of(*members).supports(protocol_type, names) is allowed


@pytest.mark.parametrize(
    ("member_id", "instance_id", "error"),
    [
        ("m0", None, None),
        ("m1", None, Error.UNKNOWN_MEMBER_ID),
        ("static", "i", None),
        ("static", None, None),
        ("old", "i", Error.FENCED_INSTANCE_ID),
        ("", "i", Error.FENCED_INSTANCE_ID),
        ("m0", "other", Error.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_the_current_member_is_heard(member_id: str, instance_id: str | None, error: Error | None) -> None:
    group = group_of("a")
    group.add(Member("static", "i", "c", "/h", 60_000, 10_000, (("a", b""),)))
    if error is None:
        assert group.check_member(member_id, instance_id).member_id == member_id
    else:
        with pytest.raises(KafkaError) as refused:
            group.check_member(member_id, instance_id)
        assert refused.value.error is error


def test_leadership_passes_on_when_the_leader_goes() -> None:
    group = group_of("a", "a", "a")
    group.remove("m0")
    assert group.leader == "m1"
    group.remove("m1")
    group.remove("m2")
    assert group.leader is None


def test_a_renamed_static_member_keeps_place_leadership_and_order() -> None:
    group = group_of("a")
    member = Member("old", "i", "c", "/h", 60_000, 10_000, (("a", b""),))
    group.add(member)
    group.remove("m0")
    group.add(Member("late", None, "c", "/h", 60_000, 10_000, (("a", b""),)))
    group.pending_sync.add("old")
    group.rename(member, "new")
    assert (list(group.members), group.leader, group.static_ids, group.pending_sync) == (
        ["new", "late"],
        "new",
        {"i": "new"},
        {"new"},
    )


def test_a_stored_group_comes_back_as_it_was() -> None:
    group = group_of("ab", "ba")
    group.next_generation(now_ms=5)
    group.enter(State.STABLE, 7)
    stored = group.stored({"m0": b"left", "m1": b"right"})
    back = Group.revived("g", stored)
    assert back.stored({"m0": b"left", "m1": b"right"}) == stored
    assert (back.state, back.generation, back.leader, back.members["m1"].assignment) == (State.STABLE, 1, "m0", b"right")


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        ([subscription("a", "b"), subscription("c", version=3)], {"a", "b", "c"}),
        ([subscription(version=0)], set()),
        ([], set()),
        ([subscription("a"), b""], None),
        ([subscription("a")[:-12]], None),
        ([b"\xff\xff" + subscription("a")[2:]], None),
        ([b"\x00\x63" + subscription("a")[2:]], {"a"}),  # a version of the future begins alike
    ],
)
def test_subscriptions_are_read_or_taken_for_everything(metadata: list[bytes], topics: set[str] | None) -> None:
    assert subscribed_topics(metadata) == topics
