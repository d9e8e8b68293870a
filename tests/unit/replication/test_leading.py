"""A leader and its followers: what their fetches say, who is in sync, what the controller is asked for, who is woken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.metadata.image import PartitionState
from ottla.model import Error, KafkaError
from ottla.records.batch import Record, build
from ottla.replication.isr import IsrOutcome, LastAsked
from ottla.replication.leaders import EpochEnd
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.replication.waiting import Waiter
from ottla.storage.log_config import LogConfig
from unit.replication.replication_kit import Node, batch, state


class Watcher:
    def __init__(self) -> None:
        self.told: list[object] = []

    def arrived(self, size: int) -> None:
        self.told.append(size)

    def changed(self) -> None:
        self.told.append("changed")

    def moved(self) -> None:
        self.told.append("moved")


class Scene:
    """Broker 1 leads; the test speaks for its followers."""

    def __init__(self, root: Path, given: PartitionState, config: LogConfig | None = None) -> None:
        self.node = Node(root, 1, config=config)
        asyncio.run(self.node.role(given))
        self.partition: Partition = self.node.partition

    def fetch(self, broker: int, offset: int, epoch: int = -1, last: int = -1, life: int = -1) -> EpochEnd | None:
        asked = LastAsked(self.node.clock.monotonic(), life)
        return self.partition.follower_asks(broker, offset, 0, epoch, last, asked)

    def refused(self, broker: int, offset: int, **more: int) -> Error:
        with pytest.raises(KafkaError) as refusal:
            self.fetch(broker, offset, **more)
        return refusal.value.error

    def pass_time(self, seconds: float) -> float:
        self.node.clock.advance_ms(int(seconds * 1000))
        return self.node.clock.monotonic()

    def answer(self, outcome: IsrOutcome) -> bool:
        partition, proposal = self.node.proposals[-1]
        return partition.answered(proposal, outcome)

    @property
    def proposed(self) -> list[tuple[int, ...]]:
        return [proposal.isr for _, proposal in self.node.proposals]


@pytest.mark.parametrize(
    ("broker", "offset", "more", "error"),
    [
        (9, 0, {}, Error.NOT_LEADER_OR_FOLLOWER),  # no replica of ours
        (9, 0, {"epoch": 3}, Error.UNKNOWN_LEADER_EPOCH),  # perhaps it knows more than we do
        (2, 0, {"epoch": 2}, Error.FENCED_LEADER_EPOCH),
        (2, 0, {"epoch": 4}, Error.UNKNOWN_LEADER_EPOCH),
        (2, 4, {"epoch": 3}, Error.OFFSET_OUT_OF_RANGE),
        (2, 0, {"epoch": 3, "life": 6}, Error.NOT_LEADER_OR_FOLLOWER),  # from a life before the one that we heard of
        (2, 0, {"epoch": 3, "last": 7}, Error.OFFSET_OUT_OF_RANGE),  # an epoch that is not known here
    ],
)
def test_what_a_follower_is_refused(tmp_path: Path, broker: int, offset: int, more: dict[str, int], error: Error) -> None:
    scene = Scene(tmp_path, state(1, 3, (1, 2)))
    scene.node.produce(b"a", b"b", b"c")
    scene.fetch(2, 0, epoch=3, life=7)
    assert scene.refused(broker, offset, **more) is error
    progress = scene.partition.progress_of(2)
    assert progress is not None
    assert progress.end == 0, "what was refused says nothing"


def test_only_the_leader_is_followed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(2, 3, (1, 2)))
    assert scene.refused(2, 0) is Error.NOT_LEADER_OR_FOLLOWER


def test_logs_that_part(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1, 2)))
    scene.node.produce(b"a", b"b")  # 0, 1 in epoch 0
    asyncio.run(scene.node.role(state(1, 4, (1, 2))))
    scene.node.produce(b"c")  # 2 in epoch 4
    assert scene.fetch(2, 2, last=0) is None, "it has all of epoch 0 and nothing else"
    assert scene.fetch(2, 3, last=4) is None
    assert scene.fetch(2, 5, last=4) == EpochEnd(4, 3), "it has more of our own epoch"
    assert scene.fetch(2, 4, last=0) == EpochEnd(0, 2), "it went on in epoch 0 after us"
    assert scene.fetch(2, 3, last=2) == EpochEnd(0, 2), "it was in an epoch of which we know nothing"
    progress = scene.partition.progress_of(2)
    assert progress is not None
    assert progress.end == 3, "what lies beyond is not ours and counts for nothing"


def test_a_new_leader_waits_for_its_followers(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(2, 0, (1, 2)))
    scene.partition.log.append_as_leader(batch(b"a", b"b"), 0)
    scene.partition.log.high_watermark = 1
    asyncio.run(scene.node.role(state(1, 1, (1, 2))))
    assert scene.node.marks == (1, 2), "its own mark, until somebody says more"
    assert scene.partition.log.leader_epochs.entries[-1] == (1, 2)
    scene.fetch(2, 1)
    assert scene.node.marks == (1, 2)
    scene.fetch(2, 2)
    assert scene.node.marks == (2, 2)


def test_the_isr_grows_and_counts_while_it_is_proposed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1,), (1, 2), version=5))
    scene.node.dead.add(2)
    scene.node.produce(b"a")
    assert scene.node.marks == (1, 1)
    scene.fetch(2, 0)
    assert scene.proposed == [], "it is behind"
    scene.fetch(2, 1, life=102)
    assert scene.proposed == [], "it may not join while nobody knows it to be alive"
    scene.node.dead.clear()
    scene.fetch(2, 1, life=102)
    assert scene.proposed == [(1, 2)]
    _, proposal = scene.node.proposals[0]
    assert (proposal.version, proposal.leader_epoch, proposal.broker_epochs) == (5, 0, {1: 101, 2: 102})
    scene.pass_time(100)
    scene.node.produce(b"b")
    assert scene.node.marks == (1, 2), "it may be in the ISR by now"
    assert scene.partition.state.isr == (1,)
    scene.fetch(2, 1)
    assert len(scene.proposed) == 1, "one at a time"
    assert not scene.answer(IsrOutcome(Error.NONE, 1, 0, (1, 2), 6))
    assert (scene.partition.state.isr, scene.partition.state.version) == ((1, 2), 6)


@pytest.mark.parametrize(
    ("error", "again", "free"),
    [
        (Error.INELIGIBLE_REPLICA, False, True),
        (Error.OPERATION_NOT_ATTEMPTED, False, True),
        (Error.INVALID_UPDATE_VERSION, False, False),
        (Error.FENCED_LEADER_EPOCH, False, False),
        (Error.NOT_CONTROLLER, True, False),
    ],
)
def test_what_a_refusal_leaves_behind(tmp_path: Path, error: Error, again: bool, free: bool) -> None:
    scene = Scene(tmp_path, state(1, 0, (1,), (1, 2), version=5))
    scene.fetch(2, 0)
    assert scene.proposed == [(1, 2)]
    assert scene.answer(IsrOutcome(error)) is again
    assert (scene.partition.proposed is None) is free
    scene.fetch(2, 0)
    assert len(scene.proposed) == (2 if free else 1)
    asyncio.run(scene.node.role(state(1, 0, (1,), (1, 2), version=6)))
    scene.fetch(2, 0)
    assert len(scene.proposed) == (3 if free else 2), "the controller's word ends all doubts"


def test_word_of_the_same_version_does_not_end_a_proposal_that_is_under_way(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1,), (1, 2), version=5))
    scene.fetch(2, 0)
    asyncio.run(scene.node.role(state(1, 0, (1,), (1, 2, 3), version=5)))
    scene.pass_time(100)
    scene.node.produce(b"a")
    assert scene.node.marks == (0, 1), "the controller may yet write that broker 2 is in sync"
    assert scene.partition.progress_of(3) is not None
    assert not scene.answer(IsrOutcome(Error.NONE, 1, 0, (1, 2), 6))
    assert scene.partition.state.replicas == (1, 2, 3)


def test_the_isr_shrinks_and_who_goes_counts_until_it_is_written(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1, 2, 3), version=5))
    scene.fetch(2, 0)
    scene.fetch(3, 0)
    scene.partition.shrink_isr(scene.pass_time(100))
    assert scene.proposed == [], "they have everything"
    scene.fetch(2, 0)
    scene.node.produce(b"a")
    now = scene.pass_time(29)
    scene.fetch(2, 1)
    scene.partition.shrink_isr(now)
    assert scene.proposed == [(1, 2)], "broker 3 was last seen long ago"
    assert scene.node.marks == (0, 1)
    watcher = Watcher()
    scene.partition.watchers.add(watcher)
    scene.answer(IsrOutcome(Error.NONE, 1, 0, (1, 2), 6))
    assert scene.node.marks == (1, 1)
    assert watcher.told == [len(batch(b"a"))]


def test_a_follower_that_was_sent_away_and_fell_behind_does_not_hold_anybody_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1,), (1, 2)))
    scene.node.produce(b"a")
    assert scene.node.marks == (1, 1)


def test_nothing_is_committed_below_min_isr(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1,), (1, 2, 3)), LogConfig(min_insync_replicas=2))
    scene.node.produce(b"a", acks=1)
    assert scene.node.marks == (0, 1)
    with pytest.raises(KafkaError) as refusal:
        scene.node.produce(b"b")
    assert refusal.value.error is Error.NOT_ENOUGH_REPLICAS
    assert scene.node.marks == (0, 1), "refused before it was written"


def test_what_producers_are_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1, 2), version=1), LogConfig(min_insync_replicas=2))
    last, since = scene.node.produce(b"a"), scene.partition.led_since
    assert scene.partition.outcome_of(last, since) is Error.REQUEST_TIMED_OUT
    scene.fetch(2, 1)
    assert scene.partition.outcome_of(last, since) is Error.NONE
    scene.partition.become(state(1, 0, (1,), (1, 2), version=2))
    assert scene.partition.outcome_of(last, since) is Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    scene.partition.become(state(2, 1, (2,), (1, 2), version=3))
    assert scene.partition.outcome_of(last, since) is Error.NOT_LEADER_OR_FOLLOWER
    scene.partition.become(state(1, 2, (1,), (1, 2), version=4))
    assert scene.partition.outcome_of(last, since) is Error.NOT_LEADER_OR_FOLLOWER, "somebody else led in between"


def test_a_leader_that_missed_an_epoch_believes_no_follower_of_before(tmp_path: Path) -> None:
    """In the epoch between, a follower may have cut off what it had."""
    scene = Scene(tmp_path, state(1, 5, (1, 2, 3)))
    scene.node.produce(*[b"x"] * 4)
    scene.fetch(2, 4, epoch=5, last=5)
    scene.fetch(3, 4, epoch=5, last=5)
    scene.node.produce(b"y")
    scene.fetch(3, 5, epoch=5, last=5)
    scene.partition.become(state(1, 7, (1, 2, 3), version=2))
    scene.fetch(2, 5, epoch=7, last=5)
    assert scene.node.marks == (4, 5)
    scene.fetch(3, 5, epoch=7, last=5)
    assert scene.node.marks == (5, 5)


def test_writes_wait_on_while_their_leader_stays(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1, 2, 3)))
    partition = scene.partition
    scene.node.produce(b"x")
    scene.fetch(2, 1)
    scene.fetch(3, 1)
    last, since, answers = scene.node.produce(b"y"), partition.led_since, []
    Waiter(
        lambda _size: partition.committed(last), lambda: answers.append(partition.outcome_of(last, since)), [partition],
        scene.node.timer, 30, over=lambda: not partition.led_all_the_time(since),
    )  # fmt: skip
    partition.delete_records_before(1)
    assert answers == []
    partition.become(state(1, 1, (1, 2), (1, 2, 3), version=1))  # broker 3 died
    assert answers == []
    scene.fetch(2, 2, epoch=1, last=0)
    partition.wake()
    assert answers == [Error.NONE]


def test_a_rebuild_of_producers_that_somebody_else_finished_counts_no_more(tmp_path: Path) -> None:
    """One that runs in a thread cannot be stopped: it must not reach into what has become of the log since."""
    scene = Scene(tmp_path, state(1, 0, (1,)))
    log = scene.partition.log
    for number in range(4):
        data = bytearray(build([Record(0, 0, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=number))
        log.append_as_leader(memoryview(data), 0)
    log.cut(2)
    in_a_thread = log.begin_rebuild()
    log.rebuild_producers()
    data = bytearray(build([Record(0, 0, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=2))
    log.append_as_leader(memoryview(data), 0)
    assert in_a_thread is not None
    in_a_thread.run()
    log.rebuilt(in_a_thread)
    data = bytearray(build([Record(0, 0, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=2))
    assert log.append_as_leader(memoryview(data), 0).duplicate


def test_followers_are_woken_by_what_is_written_and_others_by_what_is_committed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1, 2)))
    scene.fetch(2, 0)
    scene.partition.wake()
    consumer, follower = Watcher(), Watcher()
    scene.partition.watchers.add(consumer)
    scene.partition.tail_watchers.add(follower)
    info = scene.partition.append(batch(b"a"), ACKS_ALL, 9)
    scene.partition.append(batch(b"b"), ACKS_ALL, 9)
    scene.partition.wake()
    assert (consumer.told, follower.told) == ([], [2 * info.size])
    scene.fetch(2, 1)
    assert scene.partition.news
    scene.partition.wake()
    assert consumer.told == [info.size], "half of it is committed"
    assert follower.told == [2 * info.size, "moved"], "worth telling, not worth an answer of its own"
    assert not scene.partition.news
    scene.fetch(2, 1)
    assert not scene.partition.news
    scene.partition.become(state(2, 1, (2,), (1, 2)))
    assert consumer.told[-1] == follower.told[-1] == "changed"


def test_the_low_watermark_is_that_of_the_last_live_replica(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1, 2, 3)))
    scene.node.produce(b"a", b"b", b"c")
    for broker in (2, 3):
        scene.fetch(broker, 3)
    scene.partition.wake()
    assert scene.partition.delete_records_before(2) == 2
    assert scene.partition.low_watermark == 0
    asked = LastAsked(0.0)
    watcher = Watcher()
    scene.partition.watchers.add(watcher)
    scene.partition.follower_asks(2, 3, 2, -1, -1, asked)
    assert scene.partition.news
    scene.partition.wake()
    assert watcher.told == [0]
    assert scene.partition.low_watermark == 0
    scene.node.dead.add(3)
    assert scene.partition.low_watermark == 2


def test_where_consumers_may_read_from(tmp_path: Path) -> None:
    scene = Scene(tmp_path, state(1, 0, (1, 2), (1, 2, 3)))
    scene.node.produce(b"a", b"b")
    scene.fetch(2, 1)
    assert scene.partition.replicas_with(0) == [(1, 2), (2, 1)]
    assert scene.partition.replicas_with(2) == [(1, 2)]
    scene.partition.become(state(2, 1, (1, 2)))
    scene.partition.log.high_watermark = 1
    assert scene.partition.read(1, 100, 0, -1, min_one=True, leader_only=False) is None
    region = scene.partition.read(0, 100, 0, 1, min_one=True, leader_only=False)
    assert region is None or region.length > 0
    with pytest.raises(KafkaError) as refusal:
        scene.partition.read(0, 100, 0, 0, min_one=True, leader_only=False)
    assert refusal.value.error is Error.FENCED_LEADER_EPOCH
