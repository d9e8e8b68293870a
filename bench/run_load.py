"""`python -m bench.run_load NAME JSON`: one load, in this process; prints its figures as one line of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from confluent_kafka import KafkaException

from bench import client_load, group_load, keyed_load, load, monitoring, offset_load, spark_load, transaction_load
from bench.load import Figures, LoadError

LOADS: dict[str, Callable[..., Figures]] = {
    one.__name__: one
    for one in (
        load.create_topic,
        load.create_topics,
        load.delete_topics,
        load.produce,
        load.consume,
        load.one_record_requests,
        load.round_trips,
        load.read_from_start,
        load.crowd,
        transaction_load.transactions,
        transaction_load.librdkafka_transactions,
        offset_load.commits,
        offset_load.fill,
        group_load.group_settles,
        keyed_load.make_keyed,
        keyed_load.write_keyed,
        keyed_load.steady_producer,
        monitoring.count_requests,
        client_load.arrow_read,
        client_load.arrow_write,
        client_load.confluent_read,
        client_load.confluent_write,
        client_load.aiokafka_read,
        spark_load.spark_queries,
    )
}


def main() -> None:
    """Run one load."""
    name, arguments = sys.argv[1:]
    try:
        print(json.dumps(LOADS[name](**json.loads(arguments))), flush=True)
    except (LoadError, KafkaException, OSError) as problem:
        sys.exit(f"{name}: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
