"""Topics: the list, one of them with its partitions and settings, and what can be done to them."""

from __future__ import annotations

import dataclasses
from typing import Any

from starlette.requests import Request

from ottla.client.admin import configs
from ottla.client.admin.topics import create_partitions, create_topic, delete_topic
from ottla.client.errors import UnknownTopic
from ottla.console import state
from ottla.console.asking import Body
from ottla.console.history import History
from ottla.console.view import View
from ottla.model import NO_LEADER, TopicPartition

_TRENDS_UP_TO = 300
"""Rows of a list that come with a small picture; beyond that nobody compares them, and they would weigh."""
_TREND = 30


def list_topics(request: Request) -> object:
    sampler = state.of(request).sampler
    view = sampler.seen()
    return {"taken": view.taken_ms, "topics": sampler.history(lambda history: rows(view, history))}


def rows(view: View, history: History) -> list[dict[str, Any]]:
    """One row for each topic. Lag is what its groups have not read yet, all together."""
    lag: dict[str, int] = {}
    groups: dict[str, int] = {}
    for group in view.groups.values():
        for name, progress in group.topics.items():
            lag[name] = lag.get(name, 0) + progress.lag
            groups[name] = groups.get(name, 0) + 1
    trends = len(view.topics) <= _TRENDS_UP_TO
    found = []
    for name, topic in view.topics.items():
        parts = [TopicPartition(name, number) for number in topic.partitions]
        infos = topic.partitions.values()
        found.append(
            {
                "name": name,
                "internal": topic.internal,
                "partitions": len(parts),
                "replication": max((len(info.replicas) for info in infos), default=0),
                "messages": sum(map(view.messages, parts)),
                "size": sum(map(view.size, parts)),
                "rate": history.newest(("in", name)),
                "trend": history.line(("in", name), _TREND) if trends else None,
                "lag": lag.get(name, 0),
                "groups": groups.get(name, 0),
                "offline": sum(info.leader == NO_LEADER for info in infos),
                "behind": sum(info.leader != NO_LEADER and len(info.isr) < len(info.replicas) for info in infos),
            }
        )
    return found


def describe_topic(request: Request) -> object:
    """One topic with its partitions, its groups and its rate over time."""
    sampler = state.of(request).sampler
    view = sampler.seen()
    name = request.path_params["topic"]
    if name not in view.topics:
        sampler.look_now()
        view = sampler.seen()
    if name not in view.topics:
        raise UnknownTopic(f"Topic {name} does not exist, or not any more.")

    def read(history: History) -> dict[str, Any]:
        (row,) = rows(dataclasses.replace(view, topics={name: view.topics[name]}), history)
        return {**row, "times": history.times(), "line": history.line(("in", name))}

    return {
        "taken": view.taken_ms,
        **sampler.history(read),
        "parts": [_partition(view, TopicPartition(name, number)) for number in view.topics[name].partitions],
        "readers": [
            {"group": group.listed.id, "state": group.listed.state, "members": group.members, "lag": group.topics[name].lag}
            for group in view.groups.values()
            if name in group.topics
        ],
    }


def _partition(view: View, tp: TopicPartition) -> dict[str, Any]:
    info = view.topics[tp.topic].partitions[tp.partition]
    on_disk = view.replicas.get(tp, {})
    return {
        "partition": tp.partition,
        "leader": info.leader,
        "epoch": info.leader_epoch,
        "earliest": view.earliest.get(tp),
        "latest": view.latest.get(tp),
        "size": view.size(tp),
        "replicas": [
            {
                "broker": broker,
                "inSync": broker in info.isr,
                "size": on_disk[broker].size if broker in on_disk else None,
                "lag": on_disk[broker].lag if broker in on_disk else None,
            }
            for broker in info.replicas
        ],
    }


def describe_settings(request: Request) -> object:
    """The settings of a topic as they are in force, with what they mean where the broker tells."""
    name = request.path_params["topic"]
    resource = (configs.TOPIC, name)
    found = configs.describe_configs(state.of(request).cluster, [resource], documentation=True)[resource]
    return {
        "settings": [
            {
                "name": one.name,
                "value": one.value,
                "source": one.source,
                "isDefault": one.source != "DYNAMIC_TOPIC_CONFIG",
                "readOnly": one.read_only,
                "sensitive": one.sensitive,
                "documentation": one.documentation,
            }
            for one in sorted(found)
        ]
    }


# ---- actions -------------------------------------------------------------------------------------------------------------


def create(request: Request, body: Body) -> object:
    """Create a topic; a count that is not given is left to the broker."""
    console = state.of(request)
    name = body.text("name").strip()
    partitions = body.number("partitions", 1, 100_000) if body.has("partitions") else -1
    replication = body.number("replication", 1, 1000) if body.has("replication") else -1
    create_topic(console.cluster, name, partitions, replication, body.mapping("settings"))
    console.sampler.look_now()
    return {"created": name}


def add_partitions(request: Request, body: Body) -> object:
    """Grow a topic to a number of partitions."""
    console = state.of(request)
    name, count = request.path_params["topic"], body.number("count", 1, 100_000)
    refused = create_partitions(console.cluster, {name: count})[name]
    if refused is not None:
        raise refused
    console.sampler.look_now()
    return {"partitions": count}


def change_settings(request: Request, body: Body) -> object:
    """Set some settings and take others back to their defaults."""
    name = request.path_params["topic"]
    resource = (configs.TOPIC, name)
    changes = [configs.Change(key, value) for key, value in body.mapping("set").items()]
    changes += [configs.Change(str(key), None, configs.DELETE) for key in body.sequence("delete")]
    refused = configs.alter_configs(state.of(request).cluster, {resource: changes})[resource]
    if refused is not None:
        raise refused
    return {"changed": len(changes)}


def delete(request: Request, body: Body) -> object:
    """Delete a topic and all that is in it."""
    console = state.of(request)
    name = request.path_params["topic"]
    body.confirmed(name)
    delete_topic(console.cluster, name)
    console.sampler.look_now()
    return {"deleted": name}
