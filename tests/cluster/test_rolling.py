"""A rolling restart of all brokers under load: no error reaches a client with default retries."""

from __future__ import annotations

from pathlib import Path

import pytest

from .processes import LoadProcess, ProcessCluster, until

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.mark.timeout(300)
def test_a_rolling_restart_is_not_felt(tmp_path: Path) -> None:
    with ProcessCluster(str(tmp_path), 3) as cluster:
        cluster.create_topic("ledger", 6)
        cluster.create_topic("ledger-transactions", 6)
        with LoadProcess(cluster, "ledger", 6) as load:
            load.flowing()
            for broker in cluster.brokers.values():
                load.ask("pause")
                assert broker.stop() == 0
                broker.start()
                until(cluster.healthy, f"all replicas are in sync after broker {broker.number} returned")
                load.flowing()
                print(f"\nbroker {broker.number}: longest wait {load.ask('pause')['longest_s']} s")
            told = load.ask("finish")
    assert told["problems"] == []
