"""Request handlers, one module per family. Importing this package declares them all."""

from ottla.api import (
    cluster,
    configs,
    consumer_groups,
    control,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offset_commits,
    offsets,
    produce,
    topics,
    transaction_views,
    transactions,
    versions,
)

__all__ = [
    "cluster",
    "configs",
    "consumer_groups",
    "control",
    "fetch",
    "group_offsets",
    "groups",
    "log_dirs",
    "metadata",
    "offset_commits",
    "offsets",
    "produce",
    "topics",
    "transaction_views",
    "transactions",
    "versions",
]
