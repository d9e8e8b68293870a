"""What the reader process does for the console: search, follow, look at one message, send one.

Guards: what cannot be meant is refused before anything is read. Whoever takes what a job says raises when nobody listens.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.internal_topics import OffsetsRecords, TransactionRecords, decoder_of
from ottla.client.writing import write
from ottla.console import searching, tailing
from ottla.console.asking import BadRequest, Body, number
from ottla.console.payloads import given, row
from ottla.console.searching import FIELDS, Filter, Search, Span, Spans, Tell, give_back
from ottla.model import TopicPartition
from ottla.wire.schema import Malformed

Asked = Mapping[str, Any]
Work = Callable[[Tell], None]

_STARTS = ("newest", "oldest", "offset", "time")
_MOST_HITS = 1_000


def search(cluster: Cluster, asked: Asked) -> Work:
    """Hits and progress; the last word before the end says what is left to look at."""
    topic, query = asked["topic"], asked["query"]
    wanted, isolation = _filter(query), _isolation(query)

    def work(tell: Tell) -> None:
        if "left" in asked:
            spans, backwards, told = _left(topic, asked["left"])
        else:
            spans, backwards, told = _start(cluster, topic, query, isolation), query.get("from", "newest") == "newest", []
        limit = number("limit", query.get("limit", 100), 1, _MOST_HITS)
        one = Search(cluster, spans, wanted, limit, _decoding(topic, tell), isolation, told)
        if any(span.last > span.first for span in spans.values()):
            one.backwards() if backwards else one.forwards()
        tell("done", {"found": one.found, "left": _kept(one, backwards) if one.found >= limit else None})

    return work


def _start(cluster: Cluster, topic: str, query: Asked, isolation: str) -> Spans:
    start = query.get("from", "newest")
    if start not in _STARTS:
        raise BadRequest(f"from is not valid: allowed are {', '.join(_STARTS)}.")
    spans = searching.all_of(cluster, topic, _partitions(query.get("partitions", "")), isolation)
    if start == "offset":
        return searching.from_offset(spans, number("offset", query.get("at"), 0))
    if start == "time":
        return searching.from_time(cluster, spans, number("time", query.get("at"), 0))
    return spans


def _kept(one: Search, backwards: bool) -> Mapping[str, Any] | None:
    """What a search has not looked at, and what of it the page has already, as JSON; None where nothing is left."""
    spans = [[tp.partition, *span] for tp, span in one.left.items()]
    if all(first >= last for _, first, last in spans):
        return None
    return {"spans": spans, "backwards": backwards, "told": sorted(one.told)}


def _left(topic: str, kept: Asked) -> tuple[Spans, bool, list[searching.Place]]:
    spans = {TopicPartition(topic, partition): Span(first, last) for partition, first, last in kept["spans"]}
    return spans, kept["backwards"], [(partition, offset) for partition, offset in kept["told"]]


def follow(cluster: Cluster, asked: Asked) -> Work:
    """What is written from now on."""
    topic, query = asked["topic"], asked["query"]
    wanted = _filter(query)

    def work(tell: Tell) -> None:
        partitions = _partitions(query.get("partitions", ""))
        tailing.follow(cluster, topic, partitions, wanted, _decoding(topic, tell), _isolation(query))

    return work


def _filter(query: Asked) -> Filter:
    fields = tuple(filter(None, query.get("in", "").split(","))) or FIELDS
    wanted = Filter(query.get("q", ""), fields, query.get("mode", "contains"), query.get("case") != "exact")
    wanted.check()
    return wanted


def _partitions(text: str) -> list[int] | None:
    """`3` or `0,4-7`; nothing means all."""
    found: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        wanted = range(number("partition", first, 0, 1 << 30), number("partition", last if dash else first, 0, 1 << 30) + 1)
        if len(found) + len(wanted) > 100_000:
            raise BadRequest("So many partitions are not there.")
        found += wanted
    return sorted(set(found)) or None


def _isolation(query: Asked) -> str:
    return "read_committed" if query.get("isolation") == "read_committed" else "read_uncommitted"


# ---- one message ---------------------------------------------------------------------------------------------------------


def one(cluster: Cluster, asked: Asked) -> object:
    """A message whole."""
    topic = asked["topic"]
    tp = TopicPartition(topic, number("partition", asked["partition"], 0))
    offset = number("offset", asked["offset"], 0)
    record = searching.one_record(cluster, tp, offset)
    if record is None:
        raise BadRequest(
            f"There is no message at offset {offset} of {tp}: compacted, aborted or a marker.", HTTPStatus.NOT_FOUND
        )
    shown = row(record, None)
    decoder = decoder_of(topic)
    return {**shown, "decoded": decoded(decoder, shown)} if decoder is not None else shown


def send(cluster: Cluster, asked: Asked) -> object:
    """Write one message; where it came to stand."""
    topic, body = asked["topic"], Body(asked["body"])
    partition = body.number("partition", 0, 1 << 30) if body.has("partition") else None
    headers = [(one.text("name"), given(one.part("value"), "header")) for one in body.items("headers")]
    table = searching.written(given(body.part("key"), "key"), given(body.part("value"), "value"), partition, headers)
    if partition is not None and partition not in cluster.topic(topic, fresh=True).partitions:
        raise BadRequest(f"Partition {partition} of topic {topic} does not exist.")
    ((tp, place),) = write(topic, table, cluster=cluster).items()
    return {"partition": tp.partition, "offset": place.first}


# ---- internal topics -----------------------------------------------------------------------------------------------------


def _decoding(topic: str, tell: Tell) -> Tell:
    """Records of internal topics are told of with what they mean; lists are cut, but these are short."""
    decoder = decoder_of(topic)
    if decoder is None:
        return tell

    def with_meaning(kind: str, data: Any) -> None:
        for one in data.get("rows", ()):
            one["decoded"] = decoded(decoder, one)
        tell(kind, data)

    return with_meaning


def decoded(decoder: OffsetsRecords | TransactionRecords, shown: dict[str, Any]) -> dict[str, Any] | None:
    """The meaning of a record as `payloads.row` shows it; None where it has none or was cut."""
    key, value = _bytes(shown["key"]), _bytes(shown["value"])
    if key is None or (shown["value"] is not None and value is None):
        return None
    try:
        kind, fields = decoder.key(key)
        meaning: dict[str, Any] = {"key": {"type": kind, **fields}, "value": None}
        if value is not None:
            version, content = decoder.value(kind, value)
            meaning["value"] = {"version": version, **content}
        return meaning
    except Malformed as problem:
        return {"error": str(problem)}


def _bytes(shown: dict[str, Any] | None) -> bytes | None:
    if shown is None or shown.get("cut"):
        return None
    return shown["text"].encode() if "text" in shown else base64.b64decode(shown["base64"])


STREAMS: Mapping[str, Callable[[Cluster, Asked], Work]] = {"search": search, "follow": follow}
ANSWERS: Mapping[str, Callable[[Cluster, Asked], object]] = {"one": one, "send": send}
"""Which jobs there are: those that go on, and those that have one answer."""

__all__ = ["ANSWERS", "STREAMS", "decoded", "give_back"]
