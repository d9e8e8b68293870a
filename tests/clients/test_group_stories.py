"""Groups with every client: they grow and shrink, static members come back, cooperative ones keep what they may.

The stories hold on Apache Kafka too (`OTTLA_ANCHOR=apache`, see support/anchor).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from clients.adapters import BY_NAME, Client, Out, read
from clients.java_client import Java
from clients.members import COOPERATIVE, Attending, until
from clients.transactional import FOUR, everyone, member
from ottla.wire.apis.group_records import GroupMetadataKey, GroupMetadataValue
from ottla.wire.schema import decode_versioned, peek_version
from support.anchor import Broker, open_broker

PARTITIONS = 6
# How soon a member hears of a rebalance is its own affair: they ask every 3 s unless they are told to hurry.
QUICK = {"heartbeat.interval.ms": 200}


# kafka-python is given long polls (see members), so its stories take long.
CLIENTS = [pytest.param(one, marks=pytest.mark.slow) if getattr(one, "name", "") == "kafka-python" else one for one in FOUR]
# aiokafka has only eager assignors, and as a static member does not understand that it was fenced: two of them take turns.
ABLE = [one for one in CLIENTS if getattr(one, "name", "") != "aiokafka"]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each client in turn, Java's too."""
    chosen: Client = request.param
    return chosen


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with open_broker(str(tmp_path_factory.mktemp("groups"))) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


@pytest.fixture
def wide(admin: AdminClient, topic: str) -> str:
    """A topic of six partitions."""
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    return topic


def everything(topic: str) -> set[tuple[str, int]]:
    return {(topic, number) for number in range(PARTITIONS)}


def shared(members: Sequence[Attending], topic: str) -> bool:
    """Whether each partition has one owner, and no member has more than its share."""
    sizes = [len(one.assignment()) for one in members]
    together = set().union(*(one.assignment() for one in members))
    return sum(sizes) == PARTITIONS and together == everything(topic) and max(sizes) - min(sizes) <= 1


def stored_generation(broker: Broker, group: str) -> int:
    """The group's generation as the coordinator has written it down, which is the same for every client and broker."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "unused",
        "log_level": 0,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    generation = -1
    left = set(range(4))
    try:
        consumer.assign([TopicPartition("__consumer_offsets", number, OFFSET_BEGINNING) for number in left])
        while left:
            message = consumer.poll(10)
            assert message is not None, "__consumer_offsets cannot be read"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
                continue
            key, value = message.key(), message.value()
            if key is None or value is None or peek_version(key) != GroupMetadataKey.min_version:
                continue
            if decode_versioned(GroupMetadataKey, key).group == group:
                generation = decode_versioned(GroupMetadataValue, value).generation
    finally:
        consumer.close()
    return generation


class Drip:
    """Records that keep coming, numbered, while a group changes."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.sent: list[bytes] = []
        self._broker = broker
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            number = len(self.sent)
            BY_NAME["confluent"].produce(
                self._broker.bootstrap_servers, self._topic, [Out(b"%d" % number, partition=number % PARTITIONS)]
            )
            self.sent.append(b"%d" % number)

    def __enter__(self) -> Drip:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_group_grows_and_shrinks(broker: Broker, wide: str, client: Client) -> None:
    """From one member to three and back to one, while records come: partitions are shared at each size, no record is lost."""

    def open_member() -> Any:
        return member(client, broker.bootstrap_servers, [wide], f"g-{wide}", QUICK)

    with ExitStack() as stack:
        members: list[Attending] = []
        gone: list[Attending] = []
        with Drip(broker, wide) as drip:
            for size in (1, 3, 2, 1):
                while len(members) < size:
                    members.append(stack.enter_context(Attending(open_member)))
                while len(members) > size:
                    gone.append(members.pop(0))
                    gone[-1].close()
                until(lambda: shared(members, wide), f"{size} members share {PARTITIONS} partitions")
                before = len(drip.sent)
                until(lambda b=before: len(drip.sent) > b + PARTITIONS, "records go on")

        def came() -> set[bytes | None]:
            return {record.value for one in members + gone for record in one.records}

        until(lambda: came() == set(drip.sent), f"every record was read by somebody ({len(drip.sent)} were sent)")


def test_a_static_member_takes_its_place_back(broker: Broker, wide: str, client: Client) -> None:
    """Restarted within its session timeout it has its partitions again; the others never hear of it; no new generation."""
    group = f"g-{wide}"

    def open_member(name: str) -> Callable[[], Any]:
        settings = {"group.instance.id": name, "session.timeout.ms": 30_000, **QUICK}
        return lambda: member(client, broker.bootstrap_servers, [wide], group, settings)

    with ExitStack() as stack:
        members = {name: stack.enter_context(Attending(open_member(name))) for name in ("one", "two")}
        until(lambda: shared(list(members.values()), wide), "two members share the partitions")
        assigned = {name: one.assignment() for name, one in members.items()}
        generation = stored_generation(broker, group)
        for name, other in (("one", "two"), ("two", "one")):
            told = members[other].told()
            members[name].close()
            members[name] = stack.enter_context(Attending(open_member(name)))
            until(lambda n=name: members[n].assignment() == assigned[n], f"{name} has its partitions again")
            BY_NAME["confluent"].produce(
                broker.bootstrap_servers, wide, [Out(b"after", partition=number) for number in range(PARTITIONS)]
            )
            until(lambda n=name: len(members[n].records) >= 3, f"{name} reads on")
            assert members[other].told() == told, "the other was told nothing"
            assert members[other].assignment() == assigned[other]
        assert stored_generation(broker, group) == generation > 0


@pytest.mark.parametrize("able", ABLE, ids=lambda client: client.name)
def test_a_second_member_with_the_same_instance_id_fences_the_first(broker: Broker, wide: str, able: Client) -> None:
    settings = {"group.instance.id": "only", "session.timeout.ms": 30_000, **QUICK}

    def open_member() -> Any:
        return member(able, broker.bootstrap_servers, [wide], f"g-{wide}", settings)

    with Attending(open_member) as first:
        until(lambda: first.assignment() == everything(wide), "the first has all partitions")
        with Attending(open_member) as second:
            until(lambda: second.assignment() == everything(wide), "the second has them now")
            until(lambda: first.failure is not None, "the first was told that it is fenced")
            said = f"{type(first.failure).__name__} {first.failure}".lower()
            assert "fenced" in said, first.failure
            assert second.assignment() == everything(wide)


@pytest.mark.parametrize("cooperative", ABLE, ids=lambda client: client.name)
def test_a_cooperative_member_gives_up_only_what_moves(broker: Broker, wide: str, cooperative: Client) -> None:
    def open_member() -> Any:
        return member(cooperative, broker.bootstrap_servers, [wide], f"g-{wide}", {COOPERATIVE: True, **QUICK})

    with Attending(open_member) as first:
        until(lambda: first.assignment() == everything(wide), "the first has all partitions")
        with Attending(open_member) as second:
            until(lambda: shared([first, second], wide), "two members share the partitions")
            kept, moved = first.assignment(), second.assignment()
            taken = [told for told in first.told() if told.what != "assigned"]
            assert [told.what for told in taken] == ["revoked"]
            assert taken[0].partitions == moved, "what it kept was never taken from it"
            given = [told.partitions for told in second.told() if told.what == "assigned"]
            assert frozenset().union(*given) == moved
        until(lambda: first.assignment() == everything(wide), "the one that stays has all again")
        assert first.told()[-1].what == "assigned"
        back = frozenset().union(*(told.partitions for told in first.told()[2:]))
        assert back == moved, "only those that it had not were assigned"
        assert kept.isdisjoint(back)


@pytest.mark.java
def test_two_kinds_of_clients_rebalance_cooperatively(broker: Broker, wide: str) -> None:
    """librdkafka and Java in one group: the broker passes on what it does not look into."""
    kinds = (BY_NAME["confluent"], Java())
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                Attending(
                    lambda kind=kind: member(kind, broker.bootstrap_servers, [wide], f"g-{wide}", {COOPERATIVE: True, **QUICK})
                )
            )
            for kind in kinds
        ]
        until(lambda: shared(members, wide), "a member of each kind share the partitions")


def test_groups_have_offsets_of_their_own(broker: Broker, admin: AdminClient, wide: str) -> None:
    """Every client in a group of its own stops at another place, and goes on from there; nobody feels the others."""
    servers = broker.bootstrap_servers
    clients = everyone()
    for number, client in enumerate(clients):
        BY_NAME["confluent"].produce(servers, wide, [Out(b"%d" % number, partition=0)] * 5)
        with client.member(servers, [wide], f"g-{client.name}-{wide}", {"enable.auto.commit": False}) as reader:
            read(reader, 5 * (number + 1))
            reader.commit()
    total = 5 * len(clients)
    for number, client in enumerate(clients):
        group = f"g-{client.name}-{wide}"
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
        offsets = {one.partition: one.offset for one in found.topic_partitions}
        assert offsets[0] == 5 * (number + 1), client.name
        left = total - offsets[0]
        BY_NAME["confluent"].produce(servers, wide, [Out(b"more", partition=0)])
        total += 1
        with client.member(servers, [wide], group) as reader:
            records = read(reader, left + 1)
            assert [record.offset for record in records] == list(range(offsets[0], total))
