"""Topics that come into being because somebody asked for them: through the controller, wherever it is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.clock import ManualClock
from ottla.config import BrokerConfig
from ottla.controller.controller import NewTopic
from ottla.coordinator.groups import GroupCoordinator
from ottla.coordinator.settings import GroupSettings
from ottla.journal import TopicJournal
from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import BrokerImage, Endpoint, Image, PartitionState, TopicImage
from ottla.model import BrokerUnavailable, Error, KafkaError
from ottla.wire.apis.groups import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from unit.api.handler_kit import ask
from unit.coordinator.consumer_kit import Topics

BROKERS = {number: BrokerImage(number, {"PLAINTEXT": Endpoint(f"h{number}", 9092)}) for number in (1, 2, 3)}


class Scene:
    """Broker 1 of three; broker 2 is the controller."""

    def __init__(self, answer: KafkaError | None = None, *, known_at_once: bool = False, **texts: str) -> None:
        self.metadata = MetadataCache()
        self.metadata.image = Image(controller_id=2, brokers=BROKERS)
        self.created: list[NewTopic] = []
        self.asked: list[list[str]] = []
        self._answer = answer
        self._known_at_once = known_at_once
        self.services = SimpleNamespace(
            broker_id=1,
            cluster_id="c",
            config=BrokerConfig(texts),
            metadata=self.metadata,
            create_topics=self._create,
        )

    async def _create(self, topics: list[NewTopic]) -> dict[str, KafkaError | None]:
        self.created += topics
        self.asked.append([topic.name for topic in topics])
        if self._answer is not None and self._answer.error in (Error.NOT_CONTROLLER, Error.BROKER_NOT_AVAILABLE):
            raise self._answer
        if self._known_at_once:
            self.learn(topics[0].name)
        return {topic.name: self._answer for topic in topics}

    def learn(self, name: str, leader: int = 3) -> None:
        state = PartitionState(leader, 0, (3,), (3,))
        self.metadata.swap(self.metadata.image.with_topics([TopicImage(name, b"t" * 16, {0: state})]))

    def ask_for(self, name: str) -> Any:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        return ask(self.services, request, MetadataResponse, 12).topics[0]


@pytest.mark.parametrize(
    ("answer", "known_at_once", "told"),
    [
        (None, True, Error.NONE),
        (None, False, Error.LEADER_NOT_AVAILABLE),
        (KafkaError(Error.TOPIC_ALREADY_EXISTS), False, Error.LEADER_NOT_AVAILABLE),
        (KafkaError(Error.NOT_CONTROLLER), False, Error.LEADER_NOT_AVAILABLE),
        (BrokerUnavailable("silence"), False, Error.LEADER_NOT_AVAILABLE),
        (KafkaError(Error.INVALID_REPLICATION_FACTOR), False, Error.INVALID_REPLICATION_FACTOR),
    ],
)
def test_metadata_of_a_topic_that_is_not_there(answer: KafkaError | None, known_at_once: bool, told: Error) -> None:
    scene = Scene(answer, known_at_once=known_at_once, **{"num.partitions": "4", "default.replication.factor": "2"})
    topic = scene.ask_for("new")
    assert (topic.name, topic.error_code) == ("new", told)
    assert [(one.name, one.partitions, one.replication_factor) for one in scene.created] == [("new", 4, 2)]


def test_many_topics_are_one_question() -> None:
    scene = Scene()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("b", "a", "b", "bad name", "..")])
    response = ask(scene.services, request, MetadataResponse, 12)
    soon, bad = Error.LEADER_NOT_AVAILABLE, Error.INVALID_TOPIC_EXCEPTION
    assert {one.name: one.error_code for one in response.topics} == {"a": soon, "b": soon, "bad name": bad, "..": bad}
    assert scene.asked == [["a", "b"]]


def find(scene: Scene, topic: str = "__consumer_offsets") -> Any:
    async def create(name: str) -> None:
        await scene.services.create_topics([NewTopic(name, 1, 1)])

    replicas: Any = SimpleNamespace(partitions={})
    timer: Any = None
    journal = TopicJournal(topic, replicas, scene.metadata, create, timer)

    scene.services.groups = GroupCoordinator(GroupSettings(), ManualClock(), journal, timer, topics=Topics())
    return ask(scene.services, FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse, 3)


def test_a_coordinator_on_another_broker_is_found() -> None:
    scene = Scene(known_at_once=True)
    found = find(scene)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 3, "h3", 9092)


@pytest.mark.parametrize("leader", [-1, 7])
def test_a_coordinator_that_nobody_is_now(leader: int) -> None:
    scene = Scene()
    scene.learn("__consumer_offsets", leader)
    found = find(scene)
    assert (found.error_code, found.node_id) == (Error.COORDINATOR_NOT_AVAILABLE, -1)


@pytest.mark.parametrize("answer", [None, KafkaError(Error.NOT_CONTROLLER), BrokerUnavailable("silence")])
def test_the_internal_topic_is_on_its_way(answer: KafkaError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.journal._NEWS_PATIENCE", 0.01)
    assert find(Scene(answer)).error_code == Error.COORDINATOR_NOT_AVAILABLE


def test_an_internal_topic_that_cannot_be_created_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def create(name: str) -> None:
        raise KafkaError(Error.INVALID_REPLICATION_FACTOR, "Replication factor: 3 larger than available brokers: 2.")

    scene, nothing = Scene(), SimpleNamespace(partitions={})
    journal = TopicJournal("__consumer_offsets", nothing, scene.metadata, create, None)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(KafkaError):
            asyncio.run(journal.ensure_topic())
    (told,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "__consumer_offsets" in told
    assert "larger than available brokers: 2" in told


def test_the_news_of_an_internal_topic_are_waited_for() -> None:
    async def run() -> int:
        scene = Scene()

        async def create(name: str) -> None:
            asyncio.get_running_loop().call_later(0.01, scene.learn, name)

        replicas: Any = SimpleNamespace(partitions={})
        timer: Any = None
        return await TopicJournal("__consumer_offsets", replicas, scene.metadata, create, timer).ensure_topic()

    assert asyncio.run(run()) == 1
