"""The image: immutable, swapped whole, shared where nothing changed; and who waits for one."""

from __future__ import annotations

import asyncio

import pytest

from ottla.metadata.cache import MetadataCache
from ottla.metadata.image import Image, PartitionState, TopicImage
from ottla.model import Error, KafkaError, TopicPartition


def topic(name: str, topic_id: int, partitions: int = 1) -> TopicImage:
    return TopicImage(name, bytes([topic_id]) * 16, {number: PartitionState(1, 0, (1,), (1,)) for number in range(partitions)})


def test_topics_come_and_go_and_the_old_image_stays() -> None:
    empty = Image(cluster_id="c", controller_id=1)
    one = empty.with_topics([topic("a", 1), topic("b", 2)])
    two = one.with_topics([topic("a", 1, partitions=3)], removed=["b"])
    assert empty.topics == {}
    assert set(one.topics) == {"a", "b"}
    assert set(two.topics) == {"a"}
    assert len(one.topics["a"].partitions) == 1
    assert len(two.topics["a"].partitions) == 3
    assert two.topic_names == {bytes([1]) * 16: "a"}
    assert (two.cluster_id, two.controller_id) == ("c", 1)


def test_a_topic_made_anew_has_another_id() -> None:
    image = Image().with_topics([topic("a", 1)]).with_topics([topic("a", 9)], removed=["a"])
    assert image.topic_names == {bytes([9]) * 16: "a"}


def test_removing_what_is_not_there_is_no_news() -> None:
    assert Image().with_topics([], removed=["ghost"]) == Image()


@pytest.mark.parametrize("tp", [TopicPartition("a", 1), TopicPartition("a", -1), TopicPartition("ghost", 0)])
def test_unknown_partitions(tp: TopicPartition) -> None:
    image = Image().with_topics([topic("a", 1)])
    assert image.partition(TopicPartition("a", 0)).leader == 1
    with pytest.raises(KafkaError) as refusal:
        image.partition(tp)
    assert refusal.value.error is Error.UNKNOWN_TOPIC_OR_PARTITION


def test_waiting_for_an_image() -> None:
    async def run() -> None:
        cache = MetadataCache()
        has_a = asyncio.ensure_future(cache.wait_for(lambda image: "a" in image.topics, 5))
        has_b = asyncio.ensure_future(cache.wait_for(lambda image: "b" in image.topics, 5))
        never = asyncio.ensure_future(cache.wait_for(lambda _image: False, 0.01))
        await asyncio.sleep(0)
        cache.swap(Image().with_topics([topic("a", 1)]))
        assert await has_a
        assert not has_b.done()
        assert not await never
        cache.swap(Image().with_topics([topic("b", 2)]))
        assert await has_b
        assert await cache.wait_for(lambda image: "b" in image.topics, 0)
        cache.swap(Image())  # those who gave up are forgotten
        assert cache._waiters == []

    asyncio.run(run())
