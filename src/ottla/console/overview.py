"""The first page: what is wrong, the brokers, and how it goes."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request

from ottla.client.admin.disks import LogDir
from ottla.console import state, topics
from ottla.console.history import History
from ottla.console.sampler import CLUSTER_IN, CLUSTER_LAG, CLUSTER_READ, CLUSTER_SIZE
from ottla.console.view import View, missing_brokers, problems

_BUSIEST = 8


def overview(request: Request) -> object:
    """Everything on the page."""
    sampler = state.of(request).sampler
    view = sampler.seen()
    return sampler.history(lambda history: _page(view, history)) | {"problem": sampler.problem}


def _page(view: View, history: History) -> dict[str, object]:
    rows = topics.rows(view, history)
    busiest = sorted(rows, key=lambda row: (-(row["rate"] or 0), -row["messages"], row["name"]))
    return {
        "taken": view.taken_ms,
        "cluster": view.about.id,
        "problems": [problem._asdict() for problem in problems(view)],
        "totals": {
            "brokers": len(view.about.brokers),
            "topics": len(view.topics),
            "partitions": sum(row["partitions"] for row in rows),
            "messages": sum(row["messages"] for row in rows),
            "size": history.newest(CLUSTER_SIZE),
            "rate": history.newest(CLUSTER_IN),
            "lag": history.newest(CLUSTER_LAG),
        },
        "brokers": _brokers(view, history),
        "busiest": busiest[:_BUSIEST],
        "times": history.times(),
        "lines": {
            "in": {str(node.id): history.line(("in", node.id)) for node in view.about.brokers},
            "all": history.line(CLUSTER_IN),
            "read": history.line(CLUSTER_READ),
            "lag": history.line(CLUSTER_LAG),
            "size": history.line(CLUSTER_SIZE),
        },
    }


def _brokers(view: View, history: History) -> list[dict[str, object]]:
    leaders = Counter(info.leader for _, info in view.partitions())
    replicas = Counter(broker for _, info in view.partitions() for broker in info.replicas)
    out = Counter(broker for _, info in view.partitions() for broker in set(info.replicas) - set(info.isr))
    alive: list[dict[str, object]] = [
        {
            "id": node.id,
            "alive": True,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "controller": node.id == view.about.controller,
            "leaders": leaders[node.id],
            "replicas": replicas[node.id],
            "out": out[node.id],
            "rate": history.newest(("in", node.id)),
            "trend": history.line(("in", node.id), 40),
            **disk_use(view.disks.get(node.id, [])),
        }
        for node in view.about.brokers
    ]
    gone: list[dict[str, object]] = [
        {"id": broker, "alive": False, "replicas": replicas[broker], "out": out[broker]} for broker in missing_brokers(view)
    ]
    return gone + alive


def disk_use(dirs: list[LogDir]) -> dict[str, object]:
    """What logs take, and how full the volumes are; several directories of one volume count once, as far as we can tell."""
    volumes = {(one.total_bytes, one.usable_bytes) for one in dirs if one.total_bytes > 0}
    return {
        "size": sum(replica.size for one in dirs for replica in one.replicas),
        "total": sum(total for total, _ in volumes) or None,
        "usable": sum(usable for _, usable in volumes) if volumes else None,
        "failed": [one.path for one in dirs if one.error],
    }
