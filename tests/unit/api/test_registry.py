"""From a frame to a handler and back: faults on order, versions that are not ours, errors in the shape of the API."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import ottla.api
from ottla.api.faults import Fault, Faults
from ottla.api.registry import DISCONNECT, ERROR_SHAPES, HANDLERS, LATER, NO_ANSWER, Context, Registry
from ottla.model import Error, KafkaError
from ottla.wire.apis import ApiKey
from ottla.wire.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.apis.versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.frame import decode_response, encode_request
from ottla.wire.schema import Request, Response

assert ottla.api  # its import declares the handlers


class FakePeer:
    """A connection that keeps what is answered."""

    host, port, listener = "10.1.1.1", 4711, "PLAINTEXT"

    def __init__(self) -> None:
        self.waiter = None
        self.answering = None
        self.last_active = 0.0
        self.closed = False
        self.answers: list[bytes] = []
        self.unanswered = 0

    def answer(self, parts: Sequence[Any]) -> None:
        assert not self.closed
        self.answers.append(b"".join(bytes(part) for part in parts)[4:])

    def owe(self) -> FakePeer:
        return self

    def no_answer(self) -> None:
        self.unanswered += 1

    def close(self) -> None:
        self.closed = True


class Scene:
    """A registry whose services are only a timer."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.faults = Faults()
        services: Any = SimpleNamespace(timer=lambda delay, callback: self.timers.append((delay, callback)))
        self.registry = Registry(services, self.faults)
        self.peer = FakePeer()

    def ask(self, request: Request, version: int, correlation: int = 7) -> None:
        self.registry(self.peer, memoryview(encode_request(request, version, correlation, "test"))[4:])

    def answer(self, response: type[Response], version: int) -> Any:
        correlation, message = decode_response(response, self.peer.answers[-1], version)
        assert correlation == 7
        return message


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Put another handler in the place of Metadata's."""

    def put(function: Any) -> None:
        monkeypatch.setitem(HANDLERS, ApiKey.METADATA, (MetadataRequest, function))

    return put


ASKED = MetadataRequest(topics=[MetadataRequestTopic(name="t")])


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_plain_handler_answers_at_once(handler: Callable[[Any], None]) -> None:
    seen: list[Context] = []

    def answer(ctx: Context, request: MetadataRequest) -> MetadataResponse:
        seen.append(ctx)
        assert request == ASKED
        return MetadataResponse(cluster_id="here")

    handler(answer)
    scene = Scene()
    scene.ask(ASKED, 9)
    assert scene.answer(MetadataResponse, 9).cluster_id == "here"
    assert seen[0].version == 9
    assert seen[0].header.client_id == "test"
    assert seen[0].client_host == "10.1.1.1"
    assert sum(scene.registry.counters[ApiKey.METADATA].requests.values()) == 1


def test_the_three_words_that_stand_for_no_answer(handler: Callable[[Any], None]) -> None:
    for word, closed, unanswered in ((LATER, False, 0), (NO_ANSWER, False, 1), (DISCONNECT, True, 0)):
        handler(lambda _ctx, _request, word=word: word)
        scene = Scene()
        scene.ask(ASKED, 9)
        assert (scene.peer.answers, scene.peer.closed, scene.peer.unanswered) == ([], closed, unanswered)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("problem", "error", "traceback"),
    [
        (KafkaError(Error.NOT_CONTROLLER, "not me"), Error.NOT_CONTROLLER, False),
        (ZeroDivisionError("bug"), Error.UNKNOWN_SERVER_ERROR, True),
    ],
    ids=["refusal", "bug"],
)
def test_errors_take_the_shape_of_the_api(
    handler: Callable[[Any], None],
    caplog: pytest.LogCaptureFixture,
    is_async: bool,
    problem: Exception,
    error: Error,
    traceback: bool,
) -> None:
    def fail(_ctx: Context, _request: MetadataRequest) -> MetadataResponse:
        raise problem

    async def fail_later(_ctx: Context, _request: MetadataRequest) -> MetadataResponse:
        await asyncio.sleep(0)
        raise problem

    async def run() -> None:
        handler(fail_later if is_async else fail)
        scene = Scene()
        scene.ask(ASKED, 9)
        await asyncio.sleep(0.01)
        topic = scene.answer(MetadataResponse, 9).topics[0]
        assert (topic.name, topic.error_code) == ("t", error)
        assert not scene.peer.closed

    asyncio.run(run())
    assert any(record.exc_info for record in caplog.records) is traceback


def test_an_answer_that_cannot_be_encoded_ends_the_connection(
    handler: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    handler(lambda _ctx, _request: MetadataResponse(cluster_id=object()))
    scene = Scene()
    scene.ask(ASKED, 9)
    assert scene.answer(MetadataResponse, 9).topics[0].error_code == Error.UNKNOWN_SERVER_ERROR


def test_every_served_api_can_say_that_it_failed_in_every_version() -> None:
    """An error answer that cannot be made would be a hang-up: only Produce with acks=0 has no other way."""
    from ottla.api.registry import _with_error  # noqa: PLC0415

    for key, (request_type, _) in HANDLERS.items():
        for version in range(request_type.min_version, request_type.max_version + 1):
            request = request_type(acks=-1) if request_type is ProduceRequest else request_type()
            shape = ERROR_SHAPES.get(key)
            response = (
                shape(request, Error.UNKNOWN_SERVER_ERROR, "words")
                if shape
                else _with_error(key, Error.UNKNOWN_SERVER_ERROR, "words")
            )
            assert response is not None, request_type.name
            response.encoder(version)(response)


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_api_versions_in_a_version_that_is_not_ours(version: int) -> None:
    scene = Scene()
    scene.registry(scene.peer, memoryview(struct.pack(">hhihH", 18, version, 7, -1, 0)))
    response = scene.answer(ApiVersionsResponse, 0)
    assert response.error_code == Error.UNSUPPORTED_VERSION
    served = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert served == {key: (request.min_version, request.max_version) for key, (request, _) in HANDLERS.items()}
    assert not scene.peer.closed


@pytest.mark.parametrize("version", range(5))
def test_api_versions_tells_what_is_served(version: int) -> None:
    scene = Scene()
    scene.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1.0"), version)
    response = scene.answer(ApiVersionsResponse, version)
    assert response.error_code == 0
    assert {api.api_key for api in response.api_keys} == set(HANDLERS)


@pytest.mark.parametrize(("name", "software"), [("", "1"), ("a b", "1"), ("x", ""), ("-x", "1"), ("x", "1;")])
def test_client_software_that_cannot_be(name: str, software: str) -> None:
    scene = Scene()
    scene.ask(ApiVersionsRequest(client_software_name=name, client_software_version=software), 3)
    assert scene.answer(ApiVersionsResponse, 3).error_code == Error.INVALID_REQUEST


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (struct.pack(">hhih", 3, 99, 1, -1), "METADATA version 99, which is not served"),
        (struct.pack(">hhih", 38, 0, 1, -1), "CREATE_DELEGATION_TOKEN version 0, which is not served"),
        (struct.pack(">hhih", 12345, 0, 1, -1), "API key 12345 version 0, which is not served"),
        (struct.pack(">hhi", 3, 0, 1), "a request header that cannot be read"),
        (struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1), "METADATA version 1 that cannot be read"),
    ],
)
def test_what_is_hung_up_on_with_one_line(frame: bytes, says: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.registry(scene.peer, memoryview(frame))
    assert scene.peer.closed
    assert scene.peer.answers == []
    said = lines(caplog)
    assert len(said) == 1
    assert said[0].startswith("Closing 10.1.1.1:4711: it sent ")
    assert says in said[0]


# ---- faults --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def answering(handler: Callable[[Any], None]) -> Scene:
    handler(lambda _ctx, _request: MetadataResponse(cluster_id="here"))
    return Scene()


def test_the_next_requests_fail_and_then_all_is_well(answering: Scene) -> None:
    answering.faults.plan(ApiKey.METADATA, Fault(error=Error.NOT_CONTROLLER), times=2)
    outcomes = []
    for _ in range(3):
        answering.ask(ASKED, 9)
        response = answering.answer(MetadataResponse, 9)
        outcomes.append(response.topics[0].error_code if response.topics else 0)
    assert outcomes == [Error.NOT_CONTROLLER, Error.NOT_CONTROLLER, 0]
    assert answering.faults.planned == {}


def test_other_apis_are_left_alone(answering: Scene) -> None:
    answering.faults.plan(ApiKey.FETCH, Fault(disconnect=True))
    answering.ask(ASKED, 9)
    assert answering.answer(MetadataResponse, 9).cluster_id == "here"
    answering.faults.clear()
    assert answering.faults.planned == {}


def test_a_delay_and_then_what_was_asked(answering: Scene) -> None:
    answering.faults.plan(ApiKey.METADATA, Fault(delay=0.5))
    answering.ask(ASKED, 9)
    assert answering.peer.answers == []
    [(delay, act)] = answering.timers
    assert delay == 0.5
    act()
    assert answering.answer(MetadataResponse, 9).cluster_id == "here"


def test_a_delay_whose_client_went_away(answering: Scene) -> None:
    answering.faults.plan(ApiKey.METADATA, Fault(delay=0.5))
    answering.ask(ASKED, 9)
    answering.peer.close()
    answering.timers[0][1]()
    assert answering.peer.answers == []


def test_a_disconnect_carries_nothing_out(answering: Scene, handler: Callable[[Any], None]) -> None:
    handler(lambda _ctx, _request: pytest.fail("must not be carried out"))
    answering.faults.plan(ApiKey.METADATA, Fault(disconnect=True))
    answering.ask(ASKED, 9)
    assert answering.peer.closed


@pytest.mark.parametrize(("acks", "closed"), [(-1, False), (1, False), (0, True)])
def test_a_failed_produce_answers_where_an_answer_is_awaited(acks: int, closed: bool) -> None:
    scene = Scene()
    scene.faults.plan(ApiKey.PRODUCE, Fault(error=Error.NOT_ENOUGH_REPLICAS))
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=3, records=b"")])
    scene.ask(ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1, topic_data=[data]), 9)
    assert scene.peer.closed is closed
    if not closed:
        result = scene.answer(ProduceResponse, 9).responses[0].partition_responses[0]
        assert (result.index, result.error_code) == (3, Error.NOT_ENOUGH_REPLICAS)
