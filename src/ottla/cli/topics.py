"""`ottla topics`: flags and lines are those of Apache Kafka's kafka-topics.sh. A client like any other."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import click

from ottla import __version__
from ottla.cli.output import Column, print_json, print_rows, progress
from ottla.cli.tool import INT16, INT32, Failure, OneLine, cluster_options, needed, one_action, only_with
from ottla.cli.topic_names import has_collision, matching
from ottla.cli.topics_described import Described, Filters, describe_all, lines_of, objects_of, rows_of
from ottla.client.admin.topics import BROKERS_CHOICE, NewTopic, create_partitions, create_topics, delete_topics
from ottla.client.cluster import Cluster, TopicInfo
from ottla.model import Error

_AT_ONCE = 100  # topics in one request to delete: a progress bar that moves, and no request that takes minutes
_COLLISION = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide."
    " To avoid issues it is best to use either, but not both."
)
_DESCRIBED = (
    Column("Topic", "topic"),
    Column("Partition", "partition"),
    Column("Leader", "leader"),
    Column("Replicas", "replicas"),
    Column("Isr", "isr"),
    Column("Configs", "configs"),
)


@click.command("topics", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option("--create", is_flag=True, help="Create a topic.")
@click.option("--list", "list_", is_flag=True, help="List topics.")
@click.option("--describe", is_flag=True, help="Describe topics and their partitions.")
@click.option("--alter", is_flag=True, help="Add partitions.")
@click.option("--delete", is_flag=True, help="Delete topics.")
@click.option("--topic", help="A name; except with --create a regular expression, several separated by commas.")
@click.option("--topic-id", help="With --describe, the id of a topic.")
@click.option("--partitions", type=INT32, help="How many partitions; the broker's num.partitions if not given.")
@click.option("--replication-factor", type=INT16, help="How many replicas; the broker's default if not given.")
@click.option("--replica-assignment", metavar="B:B,B:B", help="Brokers for each partition: colons between replicas.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="A setting for a new topic. Repeatable.")
@click.option("--if-exists", is_flag=True, help="With --describe, --alter and --delete: no error where there is no such topic.")
@click.option("--if-not-exists", is_flag=True, help="With --create: no error where the topic exists already.")
@click.option("--exclude-internal", is_flag=True, help="With --list and --describe: leave internal topics out.")
@click.option("--topics-with-overrides", is_flag=True, help="With --describe: only topics with settings of their own.")
@click.option("--under-replicated-partitions", is_flag=True, help="With --describe: only partitions with replicas out of sync.")
@click.option("--unavailable-partitions", is_flag=True, help="With --describe: only partitions without a live leader.")
@click.option("--under-min-isr-partitions", is_flag=True, help="With --describe: fewer in sync than min.insync.replicas.")
@click.option("--at-min-isr-partitions", is_flag=True, help="With --describe: just as many in sync as min.insync.replicas.")
@click.option("--partition-size-limit-per-response", type=INT32, hidden=True)
@cluster_options
def command(
    cluster: Cluster,
    create: bool,
    list_: bool,
    describe: bool,
    alter: bool,
    delete: bool,
    topic: str | None,
    topic_id: str | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    configs: Sequence[str],
    if_exists: bool,
    if_not_exists: bool,
    exclude_internal: bool,
    topics_with_overrides: bool,
    under_replicated_partitions: bool,
    unavailable_partitions: bool,
    under_min_isr_partitions: bool,
    at_min_isr_partitions: bool,
    partition_size_limit_per_response: int | None,
    as_json: bool,
) -> None:
    """Create, list, describe, alter and delete topics. Flags and output are those of kafka-topics.sh."""
    action = one_action(list=list_, describe=describe, create=create, alter=alter, delete=delete)
    only_with(
        action,
        topic_id="describe",
        partitions="create alter",
        replication_factor="create",
        replica_assignment="create alter",
        configs="create",
        if_exists="describe alter delete",
        if_not_exists="create",
        exclude_internal="list describe",
        topics_with_overrides="describe",
        under_replicated_partitions="describe",
        unavailable_partitions="describe",
        under_min_isr_partitions="describe",
        at_min_isr_partitions="describe",
    )
    assignment = _assignment(replica_assignment)
    if action == "create":
        if assignment and (partitions is not None or replication_factor is not None):
            raise click.UsageError("--replica-assignment goes without --partitions and --replication-factor")
        needed(topic=topic)
        wanted = NewTopic(
            topic or "",
            BROKERS_CHOICE if partitions is None else partitions,
            BROKERS_CHOICE if replication_factor is None else replication_factor,
            _settings(configs),
            assignment,
        )
        _create(cluster, wanted, if_not_exists, as_json)
        return
    if action == "list":
        _list(_find(cluster, topic, exclude_internal=exclude_internal), as_json)
        return
    if action != "describe":
        needed(topic=topic)
    found = _find(cluster, topic, exclude_internal=exclude_internal, topic_id=topic_id)
    if not found and not if_exists and (topic or topic_id):
        raise Failure(f"No topic is called {topic or topic_id}: `ottla topics --list` shows those that there are.")
    if action == "describe":
        filters = Filters(
            topics_with_overrides,
            under_replicated_partitions,
            unavailable_partitions,
            under_min_isr_partitions,
            at_min_isr_partitions,
        )
        _describe(describe_all(cluster, found, filters, by_id=topic_id is not None), filters, as_json)
    elif action == "alter":
        if partitions is None:
            raise click.UsageError("Missing option '--partitions'", click.get_current_context())
        _alter(cluster, found, partitions, assignment, as_json)
    else:
        _delete(cluster, list(found), as_json)


def _find(
    cluster: Cluster, pattern: str | None, *, exclude_internal: bool, topic_id: str | None = None
) -> dict[str, TopicInfo]:
    """The topics that are meant, by name."""
    meant = matching(pattern)
    wanted_id = None if topic_id is None else _id(topic_id)
    found = cluster.topics()
    return {
        name: found[name]
        for name in sorted(found)
        if meant(name) and not (exclude_internal and found[name].internal) and wanted_id in (None, found[name].id)
    }


def _create(cluster: Cluster, wanted: NewTopic, if_not_exists: bool, as_json: bool) -> None:
    if has_collision(wanted.name) and not as_json:
        click.echo(_COLLISION)
    refused = create_topics(cluster, [wanted])[wanted.name]
    if refused is not None and not (if_not_exists and refused.error == Error.TOPIC_ALREADY_EXISTS):
        raise refused
    if as_json:
        print_json({"topic": wanted.name, "created": refused is None})
    elif refused is None:
        click.echo(f"Created topic {wanted.name}.")


def _list(found: Mapping[str, TopicInfo], as_json: bool) -> None:
    if as_json:
        print_json(list(found))
        return
    for name in found:
        click.echo(name)


def _describe(found: Sequence[Described], filters: Filters, as_json: bool) -> None:
    if as_json:
        print_json(objects_of(found, filters))
    else:
        print_rows(_DESCRIBED, rows_of(found, filters), lines=lines_of(found, filters))


def _alter(
    cluster: Cluster, found: Mapping[str, TopicInfo], partitions: int, assignment: Sequence[Sequence[int]], as_json: bool
) -> None:
    # An assignment names all partitions; those that exist stay where they are.
    places = {name: assignment[len(topic.partitions) :] for name, topic in found.items()} if assignment else None
    outcomes = create_partitions(cluster, dict.fromkeys(found, partitions), places)
    for refused in outcomes.values():
        if refused is not None:
            raise refused
    if as_json:
        print_json([{"topic": name, "partitions": partitions} for name in found])


def _delete(cluster: Cluster, names: Sequence[str], as_json: bool) -> None:
    with progress("deleting topics", len(names)) as tell:
        for at in range(0, len(names), _AT_ONCE):
            for refused in delete_topics(cluster, names[at : at + _AT_ONCE]).values():
                if refused is not None:
                    raise refused
            tell(min(at + _AT_ONCE, len(names)))
    if as_json:
        print_json([{"topic": name, "deleted": True} for name in names])


def _settings(given: Sequence[str]) -> dict[str, str]:
    settings = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"--config {one} is not valid: allowed is NAME=VALUE", click.get_current_context())
        settings[name.strip()] = value.strip()
    return settings


def _assignment(text: str | None) -> list[list[int]]:
    """Brokers for each partition, out of `1:2,2:3`."""
    if text is None:
        return []
    try:
        found = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--replica-assignment {text} is not valid: allowed is 1:2,2:3") from None
    for replicas in found:
        if len(set(replicas)) != len(replicas):
            raise click.UsageError(f"--replica-assignment {text} names a broker twice for one partition")
        if len(replicas) != len(found[0]):
            raise click.UsageError(f"--replica-assignment {text} does not give all partitions as many replicas")
    return found


def _id(text: str) -> bytes:
    """Sixteen bytes out of the 22 characters that Kafka shows them as."""
    try:
        found = base64.urlsafe_b64decode(text + "==")
    except ValueError:
        found = b""
    if len(found) != 16:
        raise click.UsageError(f"--topic-id {text} is not valid: an id has 22 letters, digits, '-' and '_'")
    return found
