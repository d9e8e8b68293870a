"""Transactions and producers: what is open and for how long, what hangs, and an end to that."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from starlette.requests import Request

from ottla.client.admin import transactions as admin
from ottla.client.admin.hanging import ActiveProducer, hanging, older_than, open_transactions
from ottla.console import state
from ottla.console.asking import BadRequest, Body, number
from ottla.console.view import View
from ottla.model import NO_LEADER, TopicPartition

_HANGS_AFTER_MS = 15 * 60 * 1000
"""Apache Kafka's longest transaction, by default: what is older than that is ended by its coordinator, or by nobody."""
_PRODUCERS = 500
"""Rows of the list of producers: those that wrote last."""


def describe(request: Request) -> object:
    """All transactional ids, what is open in partitions, and who writes."""
    console = state.of(request)
    limit = number("limit", request.query_params.get("limit", _HANGS_AFTER_MS), 0)
    now = time.time_ns() // 1_000_000
    view = console.sampler.seen()
    listed = admin.list_transactions(console.cluster)
    known = admin.describe_transactions(console.cluster, [one.transactional_id for one in listed])
    producers = admin.describe_producers(console.cluster, _led(view))
    opened = open_transactions(producers)
    ids = {one.producer_id: one.transactional_id for one in listed}
    stuck = set(hanging(older_than(opened, now, limit), ids, {name: one.partitions for name, one in known.items()}))
    return {
        "now": now,
        "limit": limit,
        "transactions": [
            {
                "id": one.transactional_id,
                "state": one.state,
                "producer": one.producer_id,
                "epoch": one.producer_epoch,
                "coordinator": one.coordinator,
                "timeout": one.timeout_ms,
                "started": one.started_ms,
                "partitions": [f"{tp.topic}-{tp.partition}" for tp in one.partitions],
            }
            for one in known.values()
        ],
        "open": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "producer": one.producer_id,
                "epoch": one.producer_epoch,
                "coordinatorEpoch": one.coordinator_epoch,
                "offset": one.start_offset,
                "last": one.last_timestamp,
                "id": ids.get(one.producer_id),
                "hangs": one in stuck,
            }
            for one in opened
        ],
        "producers": _writers(producers, ids)[:_PRODUCERS],
    }


def _led(view: View) -> list[TopicPartition]:
    return [tp for tp, info in view.partitions() if info.leader != NO_LEADER]


def _writers(producers: dict[TopicPartition, list[ActiveProducer]], ids: dict[int, str]) -> list[dict[str, Any]]:
    """Each producer once, with the partitions that remember it."""
    found: dict[int, dict[str, Any]] = {}
    for tp, states in producers.items():
        for one in states:
            row = found.setdefault(
                one.producer_id, {"producer": one.producer_id, "epoch": -1, "last": -1, "topics": set(), "count": 0}
            )
            row["epoch"] = max(row["epoch"], one.producer_epoch)
            row["last"] = max(row["last"], one.last_timestamp)
            row["topics"].add(tp.topic)
            row["count"] += 1
    rows = sorted(found.values(), key=lambda row: -row["last"])
    return [{**row, "topics": ", ".join(sorted(row["topics"])), "id": ids.get(row["producer"])} for row in rows]


def abort(request: Request, body: Body) -> object:
    """End a transaction that hangs. One that its coordinator will end is left to it."""
    console = state.of(request)
    tp = TopicPartition(body.text("topic"), body.number("partition", 0))
    producer, epoch = body.number("producer", 0), body.number("epoch", 0)
    limit = body.number("limit", 0)
    now = time.time_ns() // 1_000_000
    for one in admin.find_hanging(console.cluster, [tp], None, now, limit):
        if (one.producer_id, one.producer_epoch) == (producer, epoch):
            admin.abort_transaction(console.cluster, tp, producer, epoch, one.coordinator_epoch)
            return {"aborted": True}
    raise BadRequest(f"Producer {producer} has no transaction that hangs in {tp}, or not any more.", HTTPStatus.CONFLICT)
