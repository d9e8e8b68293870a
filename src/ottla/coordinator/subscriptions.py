"""Reads which topics a consumer subscribes to, out of the metadata that it sends with JoinGroup.

That metadata belongs to the clients. The coordinator looks into it only to know which committed offsets are in use; whatever
it cannot read counts as a subscription to everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.wire.apis.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.schema import Malformed, peek_version

_VERSION_SIZE = 2


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that these members subscribe to; None where one of them cannot be read."""
    topics: set[str] = set()
    try:
        for item in metadata:
            if peek_version(item) < 0:
                return None
            # Every version, also a future one, begins with the fields of version 0.
            subscription, _ = ConsumerProtocolSubscription.decoder(0)(item, _VERSION_SIZE)
            topics.update(subscription.topics)
    except Malformed:
        return None
    return frozenset(topics)
