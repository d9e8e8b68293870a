"""Whatever happens to one process, what was acknowledged is there once: each fault on each part of a cluster, under load.

Three brokers, three replicas, an idempotent and a transactional producer. `make soak` runs every fault on every part,
`make test` runs each fault and each part once.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from . import hosts as namespaces
from .hosts import Hosts
from .processes import LoadProcess, ProcessCluster, until

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOPIC, PARTITIONS = "ledger", 3
SESSION_S = 1.0
FAULTS = ("kill", "term", "stop", "cut")
PARTS = ("leader", "follower", "controller", "zookeeper", "coordinator")
SHORT = [
    ("kill", "leader"),
    ("kill", "controller"),
    ("term", "follower"),
    ("stop", "coordinator"),
    ("cut", "leader"),
    ("kill", "zookeeper"),
]
CELLS = [(fault, part) for fault in FAULTS for part in PARTS] if os.environ.get("OTTLA_SOAK") else SHORT


def chosen(cluster: ProcessCluster, part: str) -> int:
    """The broker that has the part at this moment; 0 for ZooKeeper."""
    partition = cluster.partition(TOPIC, 0)
    if part == "zookeeper":
        return 0
    if part == "leader":
        return int(partition.leader_id)
    if part == "controller":
        return cluster.controller()
    if part == "coordinator":
        return cluster.coordinator(f"{TOPIC}-transactions-writer")
    return next(one for one in partition.isr_nodes if one != partition.leader_id)


def strike(cluster: ProcessCluster, fault: str, number: int) -> None:
    """Do it to the broker, or to ZooKeeper (0), and make it good again."""
    process = cluster.brokers[number] if number else cluster.zookeeper
    if fault in ("kill", "term"):
        process.kill() if fault == "kill" else process.stop()
        if number:
            until(lambda: number not in {one.node_id for one in cluster.metadata().brokers}, f"broker {number} is gone")
        else:
            time.sleep(2 * SESSION_S)  # long enough for every session to end, if there were somebody to end it
        process.start()
    elif fault == "stop":
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2 * SESSION_S)
        os.kill(process.pid, signal.SIGCONT)
    else:
        assert cluster.hosts is not None
        host = number or len(cluster.brokers) + 1
        cluster.hosts.cut(host)
        time.sleep(2 * SESSION_S)
        cluster.hosts.join(host)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_fault_on_each_part(tmp_path: Path) -> None:
    reason = namespaces.missing()
    if reason is not None:
        pytest.skip(reason)
    with Hosts(4) as hosts, ProcessCluster(str(tmp_path), 3, hosts=hosts) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.create_topic(f"{TOPIC}-transactions", PARTITIONS)
        with LoadProcess(cluster, TOPIC, PARTITIONS) as load:
            load.flowing()
            for fault, part in CELLS:
                number = chosen(cluster, part)
                load.ask("pause")
                strike(cluster, fault, number)
                load.flowing()
                until(cluster.healthy, f"all replicas are in sync after {fault} of {part}")
                told = load.ask("pause")
                print(
                    f"\n{fault:5} {part:12} (broker {number or '-'}): longest wait for an acknowledgement {told['longest_s']} s"
                )
            told = load.ask("finish")
    assert told["problems"] == []
    print(f"{told['acknowledged']} records acknowledged, {told['committed']} transactions committed")
