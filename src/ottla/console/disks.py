"""Logs on disk: directories and what they hold, and of a broker on this machine also the segments."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ottla.client.admin import configs
from ottla.client.cluster import Cluster
from ottla.console import state
from ottla.console.asking import BadRequest, number
from ottla.console.segments import Directory, Segment, directories, segments
from ottla.console.view import View
from ottla.model import TopicPartition


def describe(request: Request) -> object:
    """All directories, and the replicas in them."""
    console = state.of(request)
    view = console.sampler.seen()
    local: dict[int, list[Directory]] = {}
    for one in directories(console.log_dirs):
        local.setdefault(one.broker, []).append(one)
    compacted = _compacted(console.cluster, view) if local else set()
    return {
        "taken": view.taken_ms,
        "local": sorted(local),
        "dirs": [
            {
                "broker": broker,
                "path": log_dir.path,
                "error": log_dir.error.name if log_dir.error else None,
                "size": sum(replica.size for replica in log_dir.replicas),
                "replicas": len(log_dir.replicas),
                "total": log_dir.total_bytes if log_dir.total_bytes > 0 else None,
                "usable": log_dir.usable_bytes if log_dir.total_bytes > 0 else None,
            }
            for broker, dirs in view.disks.items()
            for log_dir in dirs
        ],
        "logs": [
            {
                "broker": broker,
                "path": log_dir.path,
                "topic": replica.partition.topic,
                "partition": replica.partition.partition,
                "size": replica.size,
                "lag": replica.lag,
                "future": replica.future,
                **_files(local.get(broker, []), replica.partition, replica.partition.topic in compacted),
            }
            for broker, dirs in view.disks.items()
            for log_dir in dirs
            for replica in log_dir.replicas
        ],
    }


def _files(local: list[Directory], tp: TopicPartition, compacted: bool) -> dict[str, Any]:
    for directory in local:
        found = segments(directory, tp)
        if found:
            return {"segments": len(found), "oldest": found[0].newest_ms, "dirty": dirty_share(found) if compacted else None}
    return {}


def dirty_share(found: list[Segment]) -> float:
    """The part of a compacted log that was not cleaned yet, as the cleaner counts it: the active segment stays out."""
    closed = sum(one.size for one in found if not one.active)
    return sum(one.size for one in found if one.dirty) / closed if closed else 0.0


def _compacted(cluster: Cluster, view: View) -> set[str]:
    resources = [(configs.TOPIC, name) for name in view.topics]
    found = configs.describe_configs(cluster, resources, names=["cleanup.policy"])
    return {name for (_, name), settings in found.items() for one in settings if "compact" in (one.value or "")}


def describe_log(request: Request) -> object:
    """The segments of one log."""
    console = state.of(request)
    broker = number("broker", request.path_params["broker"], 0)
    tp = TopicPartition(request.path_params["topic"], number("partition", request.path_params["partition"], 0))
    view = console.sampler.seen()
    if tp.topic not in view.topics:
        raise BadRequest(f"Topic {tp.topic} does not exist, or not any more.")
    compacted = tp.topic in _compacted(console.cluster, view)
    for directory in directories(console.log_dirs):
        found = segments(directory, tp) if directory.broker == broker else []
        if found:
            return {
                "path": directory.path,
                "compacted": compacted,
                "cleanUpTo": directory.clean_up_to.get(tp) if compacted else None,
                "dirty": dirty_share(found) if compacted else None,
                "segments": [
                    {
                        "base": one.base_offset,
                        "size": one.size,
                        "newest": one.newest_ms,
                        "state": "active" if one.active else _state(one) if compacted else "closed",
                    }
                    for one in found
                ],
            }
    raise BadRequest(f"Broker {broker} is not on this machine, or --log-dirs does not name its directories.")


def _state(one: Segment) -> str:
    return "dirty" if one.dirty else "clean"
