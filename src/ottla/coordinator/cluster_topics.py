"""The cluster's topics as consumer groups need them, out of the broker's image: by name, by id, and by pattern."""

from __future__ import annotations

from ottla.coordinator.consumer_records import TopicMetadata
from ottla.coordinator.topic_patterns import Pattern
from ottla.metadata.cache import MetadataCache

_INTERNAL = "__"
"""Topics of the brokers' own: reading `__consumer_offsets` makes a group write to it, so no pattern means them."""
_MAX_PATTERNS = 1000


class ImageTopics:
    """A view of the current image. Its token is the image's table of topics, which is replaced whole when one changes."""

    __slots__ = ("_cache", "_matches", "_matches_of")

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self._matches: dict[str, frozenset[str]] = {}
        self._matches_of: object = None

    def token(self) -> object:
        return self._cache.image.topics

    def find(self, name: str) -> TopicMetadata | None:
        topic = self._cache.image.topics.get(name)
        return None if topic is None else TopicMetadata(topic.topic_id, name, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        return self._cache.image.topic_names.get(topic_id)

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics that match, looked for once per pattern and state of the cluster."""
        topics = self._cache.image.topics
        if self._matches_of is not topics or len(self._matches) > _MAX_PATTERNS:
            self._matches, self._matches_of = {}, topics
        found = self._matches.get(pattern)
        if found is None:
            matches = Pattern.of(pattern).matches
            found = frozenset(name for name in topics if not name.startswith(_INTERNAL) and matches(name))
            self._matches[pattern] = found
        return found
