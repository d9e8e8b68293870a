"""Consumer groups: the list, one with its lag over time and its members, and resets and deletions of what it committed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request

from ottla.client.admin import groups as admin
from ottla.client.admin.offsets import EARLIEST, LATEST, list_offsets
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.console import state
from ottla.console.asking import BadRequest, Body
from ottla.console.history import History
from ottla.console.resets import STRATEGIES, Ends, Step, plan, target_of
from ottla.console.view import View, lag_of
from ottla.model import Error, TopicPartition

_TREND = 30
_TRENDS_UP_TO = 300
_LINES = 6
"""Partitions whose lag is drawn: those that are furthest behind."""


def list_all(request: Request) -> object:
    sampler = state.of(request).sampler
    view = sampler.seen()
    trends = len(view.groups) <= _TRENDS_UP_TO

    def read(history: History) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "state": group.listed.state,
                "type": group.listed.type or "Classic",
                "coordinator": group.listed.coordinator,
                "members": group.members,
                "topics": len(group.topics),
                "lag": group.lag,
                "trend": history.line(("lag", name), _TREND) if trends else None,
            }
            for name, group in view.groups.items()
        ]

    return {"taken": view.taken_ms, "groups": sampler.history(read)}


def describe(request: Request) -> object:
    """One group, asked for now, with what the sampler remembers of it."""
    console = state.of(request)
    name = _name(request)
    described = admin.describe_groups(console.cluster, [name])[name]
    committed = admin.committed_offsets(console.cluster, name)
    if described.state == "Dead" and not committed:
        raise ClientError(Error.GROUP_ID_NOT_FOUND, f"Group {name} does not exist, or not any more.")
    view = console.sampler.seen()
    owners = {tp: member.id for member in described.members for tp in member.assignment}
    places = sorted(set(committed) | set(owners))
    ends = _latest(view, places)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "committed": committed[tp].offset if tp in committed else None,
            "metadata": committed[tp].metadata if tp in committed else "",
            "latest": ends.get(tp),
            "lag": lag_of(ends.get(tp), committed[tp].offset) if tp in committed else None,
            "member": owners.get(tp),
        }
        for tp in places
    ]
    return {
        "name": name,
        "state": described.state,
        "type": described.type,
        "assignor": described.assignor,
        "coordinator": described.coordinator,
        "lag": sum(row["lag"] or 0 for row in rows),
        "partitions": rows,
        "members": [
            {
                "id": member.id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "assignment": _assignment(member.assignment),
                "count": len(member.assignment),
            }
            for member in described.members
        ],
        **console.sampler.history(lambda history: _lines(history, name)),
    }


def _name(request: Request) -> str:
    name = request.query_params.get("name")
    if name is None:
        raise BadRequest("name is missing: it is that of a group.")
    return name


def _latest(view: View, places: list[TopicPartition]) -> Mapping[TopicPartition, int]:
    return {tp: view.latest[tp] for tp in places if tp in view.latest}


def _assignment(partitions: tuple[TopicPartition, ...]) -> str:
    """`orders 0-3, 7`: runs of partitions rather than a thousand numbers."""
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return "; ".join(f"{topic} {_runs(numbers)}" for topic, numbers in topics.items())


def _runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _lines(history: History, name: str) -> dict[str, Any]:
    by_topic = [key for key in history.keys("lag", name) if len(key) == 3]
    parts = [key for key in history.keys("lag", name) if len(key) == 4]
    furthest = sorted(parts, key=lambda key: -(history.newest(key) or 0))[:_LINES]
    return {
        "times": history.times(),
        "byTopic": [{"name": str(key[2]), "values": history.line(key)} for key in sorted(by_topic, key=str)],
        "byPartition": [{"name": f"{key[2]}-{key[3]}", "values": history.line(key)} for key in furthest],
    }


# ---- actions -------------------------------------------------------------------------------------------------------------


def preview(request: Request) -> object:
    """What a reset or a deletion would change. A question: nothing is changed by it."""
    console = state.of(request)
    name = _name(request)
    steps = _plan(console.cluster, name, request.query_params)
    return {
        "steps": [
            {"topic": step.partition.topic, "partition": step.partition.partition, "now": step.now, "new": step.new}
            for step in steps
        ]
    }


def _plan(cluster: Cluster, group: str, wanted: Mapping[str, str]) -> list[Step]:
    strategy = wanted.get("strategy", "")
    committed = {tp: one.offset for tp, one in admin.committed_offsets(cluster, group).items()}
    partitions = _chosen(cluster, committed, wanted)
    if strategy == "delete":
        return [Step(tp, committed[tp], None) for tp in partitions if tp in committed]
    if strategy not in STRATEGIES:
        raise BadRequest(f"strategy is not valid: allowed are delete, {', '.join(STRATEGIES)}.")
    value = _value(wanted.get("value", "")) if strategy not in ("earliest", "latest") else 0
    lowest = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    highest = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    ends = {tp: Ends(lowest[tp], highest[tp]) for tp in partitions}
    by_time: dict[TopicPartition, int] = {}
    if strategy in ("time", "ago"):
        moment = value if strategy == "time" else time.time_ns() // 1_000_000 - value
        by_time = list_offsets(cluster, dict.fromkeys(partitions, max(moment, 0)))
    return plan(partitions, committed, ends, target_of(strategy, value, by_time))


def _chosen(cluster: Cluster, committed: Mapping[TopicPartition, int], wanted: Mapping[str, str]) -> list[TopicPartition]:
    """One topic, or all that the group committed something for; of those, all partitions or the ones that are named."""
    topic = wanted.get("topic", "")
    everything = sorted(committed)
    if topic:
        everything = [TopicPartition(topic, number) for number in sorted(cluster.topic(topic, fresh=True).partitions)]
    numbers = {_value(one) for one in wanted.get("partitions", "").replace(" ", "").split(",") if one}
    return [tp for tp in everything if not numbers or tp.partition in numbers]


def _value(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f"{text!r} is not a whole number.") from None


def apply(request: Request, body: Body) -> object:
    """Carry out a plan that was shown, if what it was made from is still so."""
    console = state.of(request)
    name = _name(request)
    steps = [_step(one) for one in body.items("steps")]
    if not steps:
        raise BadRequest("There is nothing to change.")
    committed = admin.committed_offsets(console.cluster, name)
    for step in steps:
        now = committed[step.partition].offset if step.partition in committed else None
        if now != step.now:
            why = f"The offset of {step.partition} has changed from {step.now} to {now}: look at the preview again."
            raise BadRequest(why, HTTPStatus.CONFLICT)
    new = {step.partition: step.new for step in steps if step.new is not None}
    gone = [step.partition for step in steps if step.new is None]
    if new:
        if admin.describe_groups(console.cluster, [name])[name].members:
            why = f"Group {name} has members: stop them, and try again. They would go on where they are."
            raise BadRequest(why, HTTPStatus.CONFLICT)
        admin.commit_offsets(console.cluster, name, new)
    if gone:
        for refused in admin.delete_offsets(console.cluster, name, gone).values():
            if refused is not None:
                raise refused
    console.sampler.look_now()
    return {"changed": len(steps)}


def _step(one: Body) -> Step:
    tp = TopicPartition(one.text("topic"), one.number("partition", 0))
    return Step(tp, one.number("now", 0) if one.has("now") else None, one.number("new", 0) if one.has("new") else None)


def delete(request: Request, body: Body) -> object:
    """Delete a group that has no members, with all that it committed."""
    console = state.of(request)
    name = _name(request)
    body.confirmed(name)
    refused = admin.delete_groups(console.cluster, [name])[name]
    if refused is not None:
        raise refused
    console.sampler.look_now()
    return {"deleted": name}
