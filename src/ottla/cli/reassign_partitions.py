"""`ottla reassign-partitions`: flags and lines are those of Apache Kafka's kafka-reassign-partitions.sh. A client as any."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Any

import click

from ottla import __version__
from ottla.cli.output import compact_json, one_line, print_json, progress
from ottla.cli.reassignment_plan import Plan, as_file, moves, read_plan, read_topics
from ottla.cli.reassignment_steps import (
    DirectoryState,
    PartitionState,
    assignment_of,
    clear_throttles,
    directory_states,
    partition_states,
    shown,
    start_directory_moves,
    throttle,
    throttle_directories,
)
from ottla.cli.tool import INT64, Failure, OneLine, cluster_options, needed, one_action, only_with
from ottla.client.admin.disks import Placement, alter_replica_log_dirs
from ottla.client.admin.nodes import check_broker, describe_cluster
from ottla.client.admin.topics import alter_reassignments, list_reassignments
from ottla.client.cluster import Cluster
from ottla.controller.assignment import assign
from ottla.model import TopicPartition

_LOOK_EVERY = 0.2
_EXISTING = (
    "Partitions are being moved already: use --additional to add these moves to them, or to change the throttle by giving the"
    " same file again"
)
_VERIFY_LATER = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)


@click.command("reassign-partitions", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option("--generate", is_flag=True, help="Propose where the partitions of topics could go. Changes nothing.")
@click.option("--execute", is_flag=True, help="Begin to move partitions.")
@click.option("--verify", is_flag=True, help="Show how far the moves are; takes throttles back when they are done.")
@click.option("--cancel", is_flag=True, help="Cancel moves that are under way.")
@click.option("--list", "list_", is_flag=True, help="List moves that are under way.")
@click.option(
    "--topics-to-move-json-file", metavar="FILE", help='For --generate, as {"topics": [{"topic": "t"}], "version": 1}.'
)
@click.option("--broker-list", metavar="ID,ID", help="For --generate: the brokers that partitions may go to.")
@click.option("--disable-rack-aware", is_flag=True, help="For --generate: do not look at racks.")
@click.option(
    "--reassignment-json-file",
    metavar="FILE",
    help='As {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/d"]}], "version": 1}.',
)
@click.option(
    "--throttle", "rate", type=INT64, metavar="B/S", help="Between brokers, no more than so many bytes a second each."
)
@click.option(
    "--replica-alter-log-dirs-throttle", "directory_rate", type=INT64, metavar="B/S", help="The same between directories."
)
@click.option("--additional", is_flag=True, help="With --execute: add to moves that are under way.")
@click.option("--preserve-throttles", is_flag=True, help="With --verify and --cancel: leave throttles as they are.")
@click.option("--timeout", type=INT64, default=10_000, metavar="MS", help="How long to wait for directories to take replicas.")
@click.option("--wait", is_flag=True, help="With --execute and --verify: until all is moved. Not in Apache's tool.")
@cluster_options
def command(
    cluster: Cluster,
    generate: bool,
    execute: bool,
    verify: bool,
    cancel: bool,
    list_: bool,
    topics_to_move_json_file: str | None,
    broker_list: str | None,
    disable_rack_aware: bool,
    reassignment_json_file: str | None,
    rate: int | None,
    directory_rate: int | None,
    additional: bool,
    preserve_throttles: bool,
    timeout: int,
    wait: bool,
    as_json: bool,
) -> None:
    """Move replicas between brokers and between their directories. Flags and output: kafka-reassign-partitions.sh."""
    action = one_action(generate=generate, execute=execute, verify=verify, cancel=cancel, list=list_)
    only_with(
        action,
        topics_to_move_json_file="generate",
        broker_list="generate",
        disable_rack_aware="generate",
        reassignment_json_file="execute verify cancel",
        rate="execute",
        directory_rate="execute",
        additional="execute",
        preserve_throttles="verify cancel",
        wait="execute verify",
    )
    say = _Lines(as_json)
    if action == "list":
        _list(cluster, say)
    elif action == "generate":
        needed(topics_to_move_json_file=topics_to_move_json_file, broker_list=broker_list)
        _generate(cluster, read_topics(str(topics_to_move_json_file)), str(broker_list), disable_rack_aware, say)
    else:
        needed(reassignment_json_file=reassignment_json_file)
        plan = read_plan(str(reassignment_json_file))
        if action == "execute":
            _execute(cluster, plan, rate, directory_rate, additional, timeout, say)
        if wait:
            _wait(cluster, plan)
        if action == "verify":
            _verify(cluster, plan, preserve_throttles, say)
        elif action == "cancel":
            _cancel(cluster, plan, preserve_throttles, say)
    say.finish()


class _Lines:
    """What is said on the way: lines as they come, or one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._object: dict[str, Any] = {}

    def __call__(self, *lines: str, end: bool = True) -> None:
        if not self._as_json:
            click.echo("\n".join(map(one_line, lines)), nl=end)

    def note(self, **facts: object) -> None:
        self._object |= facts

    def finish(self) -> None:
        if self._as_json:
            print_json(self._object)


def _list(cluster: Cluster, say: _Lines) -> None:
    found = dict(sorted(list_reassignments(cluster).items()))
    say.note(
        reassignments=[
            {**tp._asdict(), "replicas": one.replicas, "adding": one.adding, "removing": one.removing}
            for tp, one in found.items()
        ]
    )
    if not found:
        say("No partition reassignments found.")
        return
    say("Current partition reassignments:")
    for tp, one in found.items():
        adding = f" adding: {_joined(one.adding)}." if one.adding else ""
        removing = f" removing: {_joined(one.removing)}." if one.removing else ""
        say(f"{tp}: replicas: {_joined(one.replicas)}.{adding}{removing}")


def _generate(cluster: Cluster, topics: Sequence[str], broker_list: str, ignore_racks: bool, say: _Lines) -> None:
    try:
        allowed = [int(part) for part in broker_list.split(",") if part]
    except ValueError:
        raise Failure(f"--broker-list {broker_list} is not valid: allowed are ids, separated by commas") from None
    if len(set(allowed)) != len(allowed):
        raise Failure(f"--broker-list {broker_list} names a broker twice.")
    check_broker(cluster, *allowed)
    racks = {one.id: None if ignore_racks else one.rack for one in describe_cluster(cluster).brokers if one.id in allowed}
    if len({rack is None for rack in racks.values()}) > 1:
        raise Failure("Not all of these brokers have a rack: give them one, or use --disable-rack-aware.")
    current: dict[TopicPartition, tuple[int, ...]] = {}
    proposed: dict[TopicPartition, tuple[int, ...]] = {}
    for name, topic in sorted(cluster.topics(topics).items()):
        places = [one.replicas for one in topic.partitions.values()]
        current |= {TopicPartition(name, number): replicas for number, replicas in enumerate(places)}
        found = assign(racks, len(places), len(places[0]), Random())
        proposed |= {TopicPartition(name, number): replicas for number, replicas in found.items()}
    say.note(current=as_file(current), proposed=as_file(proposed))
    say("Current partition replica assignment", compact_json(as_file(current)), "")
    say("Proposed partition reassignment configuration", compact_json(as_file(proposed)))


def _execute(
    cluster: Cluster, plan: Plan, rate: int | None, directory_rate: int | None, additional: bool, timeout_ms: int, say: _Lines
) -> None:
    check_broker(cluster, *sorted({broker for replicas in plan.replicas.values() for broker in replicas}))
    current = assignment_of(cluster, plan.replicas)
    under_way = list_reassignments(cluster)
    if under_way and not additional:
        raise Failure(_EXISTING)
    say("Current partition replica assignment", "", compact_json(as_file(current)), "")
    say("Save this to use as the --reassignment-json-file option during rollback")
    if rate is not None or directory_rate is not None:
        say(_VERIFY_LATER)
    if rate is not None:
        throttle(cluster, moves(under_way, plan.replicas, current), rate)
        say(f"The inter-broker throttle limit was set to {rate} B/s")
    if directory_rate is not None:
        throttle_directories(cluster, (place.broker for place in plan.directories), directory_rate)
        say(f"The replica-alter-dir throttle limit was set to {directory_rate} B/s")
    refused = {tp: one for tp, one in alter_reassignments(cluster, plan.replicas).items() if one is not None}
    if refused:
        raise Failure(" ".join(str(one) for one in refused.values()))
    started = ",".join(map(str, sorted(plan.replicas)))
    say(f"Successfully started partition reassignment{_s(plan.replicas)} for {started}")
    if plan.directories:
        start_directory_moves(cluster, plan.directories, timeout_ms)
        for place, path in sorted(plan.directories.items()):
            # The space at the end is Apache's.
            say(
                f"Successfully started moving log directory to {path} for replica {place.partition} with broker {place.broker} "
            )
    say.note(current=as_file(current), started=[tp._asdict() for tp in sorted(plan.replicas)])


def _wait(cluster: Cluster, plan: Plan) -> None:
    """Until nothing of the plan is under way any more."""
    total = len(plan.replicas) + len(plan.directories)
    with progress("moving replicas", total) as tell:
        while True:
            partitions, _ = partition_states(cluster, plan)
            directories = directory_states(cluster, plan.directories)
            left = sum(one.under_way for one in partitions.values()) + sum(one.under_way for one in directories.values())
            tell(total - left)
            if not left:
                return
            time.sleep(_LOOK_EVERY)


def _verify(cluster: Cluster, plan: Plan, preserve_throttles: bool, say: _Lines) -> None:
    partitions, any_moving = partition_states(cluster, plan)
    directories = directory_states(cluster, plan.directories)
    say("Status of partition reassignment:", *(_status(tp, one) for tp, one in partitions.items()))
    say(*(_directory_status(place, one) for place, one in directories.items()))
    say.note(
        partitions=[{**tp._asdict(), **one._asdict(), "done": one.done} for tp, one in partitions.items()],
        directories=[
            {**place.partition._asdict(), "broker": place.broker, **one._asdict()} for place, one in directories.items()
        ],
    )
    if not any_moving and not any(one.under_way for one in directories.values()) and not preserve_throttles:
        _clear(cluster, plan, say)


def _status(tp: TopicPartition, state: PartitionState) -> str:
    if state.under_way:
        return f"Reassignment of partition {tp} is still in progress."
    if state.done:
        return f"Reassignment of partition {tp} is completed."
    return (
        f"There is no active reassignment of partition {tp}, but replica set is {_joined(state.replicas)}"
        f" rather than {_joined(state.wanted)}."
    )


def _directory_status(place: Placement, state: DirectoryState) -> str:
    replica = shown(place)
    on_broker = f"Partition {place.partition} on broker {place.broker}"
    if state.current is None:
        return (
            f"Partition {place.partition} is not found in any live log dir on broker {place.broker}."
            " There is likely an offline log directory on the broker."
        )
    if state.future == state.wanted:
        return f"Reassignment of replica {replica} is still in progress."
    if state.future is not None:
        return f"{on_broker} is being moved to log dir {state.future} instead of {state.wanted}."
    if state.current == state.wanted:
        return f"Reassignment of replica {replica} completed successfully."
    return f"{on_broker} is not being moved from log dir {state.current} to {state.wanted}."


def _cancel(cluster: Cluster, plan: Plan, preserve_throttles: bool, say: _Lines) -> None:
    active = sorted(list_reassignments(cluster, plan.replicas))
    if active:
        refused = [one for one in alter_reassignments(cluster, dict.fromkeys(active, None)).values() if one is not None]
        if refused:
            raise Failure(" ".join(map(str, refused)))
        say(f"Successfully cancelled partition reassignment{_s(active)} for: {','.join(map(str, active))}")
    else:
        say("None of the specified partition reassignments are active.")
    # A move between directories ends when its replica is told to stay where it is.
    stay = {
        place: one.current
        for place, one in directory_states(cluster, plan.directories).items()
        if one.under_way and one.current is not None
    }
    for one in alter_replica_log_dirs(cluster, stay).values() if stay else ():
        if one is not None:
            raise one
    if stay:
        say(f"Successfully cancelled log directory move{_s(stay)} for: {','.join(map(shown, sorted(stay)))}")
    else:
        say("None of the specified partition moves are active.", end=False)
    say.note(cancelled=[tp._asdict() for tp in active], cancelledMoves=[shown(place) for place in sorted(stay)])
    if not preserve_throttles:
        _clear(cluster, plan, say)


def _clear(cluster: Cluster, plan: Plan, say: _Lines) -> None:
    brokers = sorted(cluster.brokers())
    say(f"Clearing broker-level throttles on broker{_s(brokers)} {_joined(brokers)}")
    say(f"Clearing topic-level throttles on topic{_s(plan.topics)} {','.join(plan.topics)}")
    clear_throttles(cluster, brokers, plan.topics)


def _joined(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def _s(things: Sequence[object] | dict[Any, Any]) -> str:
    return "" if len(things) == 1 else "s"
