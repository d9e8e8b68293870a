"""`ottla consumer-groups`: list, describe and delete consumer groups, reset and delete their offsets. Options, output and exit
codes are those of kafka-consumer-groups.sh: only options that are wrong end it with 1; what the cluster refuses is told on the
output, and the code is 0. `--json` ends with 1 there, too.

Guards: nothing changes without --execute; a group that has members keeps its offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from ottla import __version__
from ottla.cli.data_tool import say
from ottla.cli.group_tables import (
    Shown,
    show_deleted_offsets,
    show_list,
    show_members,
    show_offsets,
    show_resets,
    show_states,
)
from ottla.cli.group_views import describe_sorted, existing_partitions, view_offsets
from ottla.cli.kafka_settings import properties_in
from ottla.cli.offset_resets import (
    Plan,
    Resets,
    parse_datetime,
    parse_duration,
    parse_topic,
    read_plans,
    write_plans,
)
from ottla.cli.output import print_json
from ottla.cli.tool import INT64, OneLine, WholeNumber, json_option
from ottla.client.admin.groups import (
    CONSUMER_PROTOCOL,
    commit_offsets,
    committed_offsets,
    delete_groups,
    delete_offsets,
    describe_groups,
    list_groups,
)
from ottla.client.admin.offsets import EARLIEST, LATEST
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.clock import SystemClock
from ottla.model import Error, KafkaError, TopicPartition

_LONG = WholeNumber(-(1 << 63), (1 << 63) - 1)
_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
_TYPES = ("Consumer", "Classic")
_ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets")
_STRATEGIES = (
    "to-offset",
    "to-earliest",
    "to-latest",
    "to-current",
    "shift-by",
    "to-datetime",
    "by-duration",
    "from-file",
)
_REASONS = {
    Error.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    Error.NON_EMPTY_GROUP: "The group is not empty.",
    Error.GROUP_SUBSCRIBED_TO_TOPIC: "The group is reading this topic.",
    Error.UNKNOWN_TOPIC_OR_PARTITION: "There is no such topic or partition.",
    Error.GROUP_AUTHORIZATION_FAILED: "Access to the group is not authorized.",
    Error.TOPIC_AUTHORIZATION_FAILED: "Access to the topic is not authorized.",
    Error.INVALID_GROUP_ID: "The group id is not valid.",
}


class Options(NamedTuple):
    """What stands on the command line, beside the cluster."""

    action: str
    groups: tuple[str, ...]
    all_groups: bool
    topics: tuple[str, ...]
    all_topics: bool
    strategy: str | None
    value: Any
    execute: bool
    export: bool


@click.command("consumer-groups", cls=OneLine)
@click.version_option(__version__, prog_name="ottla")
@click.option("--bootstrap-server", required=True, metavar="HOST:PORT[,...]", help="Brokers to ask first.")
@click.option("--command-config", metavar="FILE", help="A properties file of an admin client.")
@click.option("--list", is_flag=True, help="List all groups.")
@click.option("--describe", is_flag=True, help="Describe groups: partitions with offsets and lag, unless told otherwise.")
@click.option("--delete", is_flag=True, help="Delete groups that have no members.")
@click.option("--reset-offsets", is_flag=True, help="Let a group without members begin elsewhere.")
@click.option("--delete-offsets", is_flag=True, help="Delete offsets of one group, with --topic.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="The group; may be given more than once.")
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="A topic, or some of its partitions.")
@click.option("--all-topics", is_flag=True, help="All topics that the group has offsets of.")
@click.option("--members", is_flag=True, help="With --describe: who is in the group.")
@click.option("--offsets", is_flag=True, help="With --describe: partitions with offsets and lag.")
@click.option(
    "--state",
    is_flag=False,
    flag_value="",
    metavar="[STATE,...]",
    help="With --describe: the state of the group. With --list: the states, or only groups in these.",
)
@click.option(
    "--type",
    "type_",
    is_flag=False,
    flag_value="",
    metavar="[TYPE,...]",
    help="With --list: the types, or only groups of these.",
)
@click.option("--verbose", is_flag=True, help="With --describe: more, such as the assignment of members.")
@click.option("--to-offset", type=_LONG, metavar="OFFSET", help="Reset to this offset.")
@click.option("--to-earliest", is_flag=True, help="Reset to the beginning.")
@click.option("--to-latest", is_flag=True, help="Reset to the end.")
@click.option("--to-current", is_flag=True, help="Reset to where the group is.")
@click.option("--shift-by", type=_LONG, metavar="N", help="Reset forward by so many, or back if negative.")
@click.option("--to-datetime", metavar="TIME", help="Reset to a time: YYYY-MM-DDTHH:mm:SS.sss, in UTC unless a zone follows.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="Reset to a time that is so long ago.")
@click.option("--from-file", metavar="FILE", help="Reset to what stands in a CSV file.")
@click.option("--dry-run", is_flag=True, help="Only show what --reset-offsets would do: the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--export", is_flag=True, help="Show it as CSV, for --from-file.")
@click.option("--timeout", type=INT64, default=5000, metavar="MS", help="How long the cluster may take to settle (5000).")
@json_option
def command(
    bootstrap_server: str,
    command_config: str | None,
    groups: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    members: bool,
    offsets: bool,
    state: str | None,
    type_: str | None,
    verbose: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    timeout: int,
    as_json: bool,
    **others: Any,
) -> None:
    """Look at consumer groups; reset and delete their offsets."""
    actions = [one for one in _ACTIONS if others[one.replace("-", "_")]]
    if len(actions) != 1:
        raise click.UsageError(f"Command must include exactly one action: {', '.join(f'--{one}' for one in _ACTIONS)}")
    strategies = [one for one in _STRATEGIES if others[one.replace("-", "_")] not in {None, False}]
    strategy = strategies[0] if strategies else None
    value = others[strategy.replace("-", "_")] if strategy else None
    options = Options(actions[0], groups, all_groups, topics, all_topics, strategy, value, execute, export)
    _check_scope(options)
    if options.action == "describe" and members + offsets + (state is not None) > 1:
        raise click.UsageError("Option --describe takes at most one of these options: --members, --offsets, --state")
    if options.action == "describe" and state:
        raise click.UsageError("Option --describe does not take a value for --state")
    if options.action == "reset-offsets":
        options = _checked_reset(options, strategies, dry_run)
    states, types = _names(state, _STATES, "state"), _names(type_, _TYPES, "types")
    settings = properties_in(command_config, "--command-config")
    settings |= {"bootstrap.servers": bootstrap_server, "default.api.timeout.ms": str(max(1, timeout))}
    shown = Shown(as_json)
    try:
        with Cluster({"client.id": "ottla", **settings}) as cluster:
            work = _Work(cluster, shown, options)
            match options.action:
                case "list":
                    work.list_groups(states, types, with_states=state is not None, with_types=type_ is not None)
                case "describe":
                    work.describe("members" if members else "state" if state is not None else "offsets", verbose=verbose)
                case "delete":
                    work.delete()
                case "reset-offsets":
                    work.reset()
                case "delete-offsets":
                    work.delete_offsets()
    except KafkaError as problem:
        if as_json:
            raise
        shown.error(f"Executing consumer group command failed due to {problem}")


def _check_scope(options: Options) -> None:
    """Which options belong to which action."""
    action = options.action
    if action in {"describe", "delete", "reset-offsets"} and not options.groups and not options.all_groups:
        raise click.UsageError(f"Option --{action} takes one of these options: --group, --all-groups")
    if action == "delete-offsets" and (not options.groups or not options.topics):
        raise click.UsageError("Option --delete-offsets takes the following options: --group, --topic")
    if options.groups and options.all_groups:
        raise click.UsageError("Option --group can't be used with option --all-groups")
    if options.groups and action == "list":
        raise click.UsageError("Option --group can't be used with option --list")
    if options.topics and action == "delete":
        raise click.UsageError("The consumer does not support topic-specific offset deletion from a consumer group")
    if options.topics and action in {"list", "describe"}:
        raise click.UsageError(f"Option --topic can't be used with option --{action}")


def _checked_reset(options: Options, strategies: Sequence[str], dry_run: bool) -> Options:
    """The same with its value parsed; what cannot be meant is refused before anybody is asked."""
    if dry_run and options.execute:
        raise click.UsageError("Option --reset-offsets only accepts one of --execute and --dry-run")
    if not dry_run and not options.execute:
        say("WARN: No action will be performed as the --execute option is missing.")
    if len(strategies) > 1:
        raise click.UsageError(f"Option --{strategies[0]} can't be used with option --{strategies[1]}")
    if not strategies:
        scenarios = ", ".join(f"--{one}" for one in _STRATEGIES)
        raise click.UsageError(f"Option --reset-offsets requires one of the following scenarios: {scenarios}")
    if not options.all_topics and not options.topics and options.strategy != "from-file":
        raise click.UsageError("One of the reset scopes should be defined: --all-topics, --topic")
    parsers = {"to-datetime": parse_datetime, "by-duration": parse_duration}
    if options.strategy in parsers:
        try:
            return options._replace(value=parsers[options.strategy](options.value))
        except ValueError as problem:
            raise click.BadParameter(f"{options.value}: {problem}", param_hint=f"'--{options.strategy}'") from None
    if options.strategy == "from-file":
        return options._replace(value=read_plans(options.value, options.groups))
    return options


def _names(text: str | None, valid: Sequence[str], what: str) -> list[str]:
    """Names out of a list, whatever their case."""
    if not text:
        return []
    by_folded = {one.lower(): one for one in valid}
    try:
        return [by_folded[one.strip().lower()] for one in text.split(",")]
    except KeyError:
        raise click.UsageError(f"Invalid {what} list '{text}'. Valid {what.rstrip('s')}s are: {', '.join(valid)}") from None


class _Work:
    """The actions, each on its cluster and with its output."""

    def __init__(self, cluster: Cluster, shown: Shown, options: Options) -> None:
        self._cluster = cluster
        self._shown = shown
        self._options = options

    def list_groups(self, states: Sequence[str], types: Sequence[str], *, with_states: bool, with_types: bool) -> None:
        found = [one for one in list_groups(self._cluster, states, types) if one.protocol_type in {CONSUMER_PROTOCOL, ""}]
        show_list(self._shown, found, types=with_types, states=with_states)

    def describe(self, what: str, *, verbose: bool) -> None:
        groups = self._groups()
        if what == "offsets":
            show_offsets(self._shown, view_offsets(self._cluster, groups))
            return
        described = describe_sorted(self._cluster, groups)
        if what == "members":
            show_members(self._shown, described, verbose=verbose)
        else:
            addresses = {broker: str(address) for broker, address in self._cluster.brokers().items()}
            show_states(self._shown, described, addresses)

    def delete(self) -> None:
        outcomes = delete_groups(self._cluster, self._groups())
        failed = {group: _reason(problem) for group, problem in outcomes.items() if problem is not None}
        deleted = [group for group in outcomes if group not in failed]
        if self._shown.as_json:
            print_json([{"group": group, "error": failed.get(group)} for group in outcomes])
        elif not failed:
            self._shown.line(f"Deletion of requested consumer groups ('{', '.join(deleted)}') was successful.")
        else:
            self._shown.error("Deletion of some consumer groups failed:")
            for group, reason in failed.items():
                self._shown.line(f"* Group '{group}' could not be deleted due to: {reason}")
            if deleted:
                self._shown.line()
                names = ", ".join(f"'{group}'" for group in deleted)
                self._shown.line(f"These consumer groups were deleted successfully: {names}")

    def reset(self) -> None:
        resets: dict[str, Plan] = {}
        for group, described in describe_groups(self._cluster, self._groups()).items():
            resets[group] = {}
            if described.state not in {"Empty", "Dead"}:
                self._tell(
                    f"Assignments can only be reset if the group '{group}' is inactive,"
                    f" but the current state is {described.state}."
                )
                continue
            resets[group] = self._plan(group)
            if self._options.execute:
                commit_offsets(self._cluster, group, resets[group])
        if self._options.export:
            click.echo(write_plans(resets, with_group=len(self._options.groups) != 1))
        else:
            show_resets(self._shown, resets)

    def _tell(self, words: str) -> None:
        """An error that ends nothing: part of the output, unless a program reads that."""
        if self._shown.as_json or self._options.export:
            say(words)
        else:
            self._shown.error(words)

    def _plan(self, group: str) -> Plan:
        warn = say if self._shown.as_json or self._options.export else self._shown.warning
        resets, value = Resets(self._cluster, warn, say), self._options.value
        if self._options.strategy == "from-file":
            if group not in value:
                self._tell(f"No reset plan for group {group} found")
            return resets.within_log(value.get(group, {}))
        partitions = self._scope(group)
        match self._options.strategy:
            case "to-offset":
                return resets.to_offset(partitions, value)
            case "to-earliest":
                return resets.to_end(partitions, EARLIEST)
            case "to-latest":
                return resets.to_end(partitions, LATEST)
            case "shift-by":
                return resets.shifted(group, partitions, value)
            case "to-datetime":
                return resets.to_time(partitions, value)
            case "by-duration":
                return resets.to_time(partitions, SystemClock().now_ms() - value)
            case _:
                return resets.to_current(group, partitions)

    def _scope(self, group: str) -> list[TopicPartition]:
        """The partitions to reset."""
        if self._options.all_topics:
            return sorted(committed_offsets(self._cluster, group))
        named = [parse_topic(text) for text in self._options.topics]
        whole = self._cluster.topics({topic for topic, numbers in named if numbers is None}) if named else {}
        return [
            TopicPartition(topic, number)
            for topic, numbers in named
            for number in (sorted(whole[topic].partitions) if numbers is None else numbers)
        ]

    def delete_offsets(self) -> None:
        group, topics = self._options.groups[-1], self._options.topics
        named = [parse_topic(text) for text in topics]
        existing = existing_partitions(self._cluster, {topic for topic, numbers in named if numbers is None})
        wanted = {TopicPartition(topic, number) for topic, numbers in named if numbers is not None for number in numbers}
        missing = {topic for topic, numbers in named if numbers is None} - {tp.topic for tp in existing}
        problem: ClientError | None = None
        outcomes: dict[TopicPartition, ClientError | None] = {}
        try:
            outcomes = delete_offsets(self._cluster, group, sorted(wanted | existing))
        except ClientError as refused:
            if refused.error not in _REASONS:
                raise
            problem = refused
            outcomes = dict.fromkeys(wanted | existing, refused)
        worst = problem or next(filter(None, outcomes.values()), None)
        told = {tp: None if one is None else _reason(one) for tp, one in outcomes.items()}
        told |= {TopicPartition(topic, -1): _REASONS[Error.UNKNOWN_TOPIC_OR_PARTITION] for topic in missing}
        if not self._shown.as_json:
            self._tell_deleted(worst, group, topics)
        show_deleted_offsets(self._shown, told)

    def _tell_deleted(self, worst: ClientError | None, group: str, topics: Sequence[str]) -> None:
        match worst.error if worst is not None else None:
            case None:
                self._shown.line(f"Request succeed for deleting offsets with topic {', '.join(topics)} group {group}")
            case Error.INVALID_GROUP_ID:
                self._shown.error(f"'{group}' is not valid.")
            case Error.GROUP_ID_NOT_FOUND:
                self._shown.error(f"'{group}' does not exist.")
            case Error.GROUP_AUTHORIZATION_FAILED:
                self._shown.error(f"Access to '{group}' is not authorized.")
            case Error.NON_EMPTY_GROUP:
                self._shown.error(f"Deleting offsets of a consumer group '{group}' is forbidden if the group is not empty.")
            case _:
                self._shown.error("Encounter some partition level error, see the follow-up details:")

    def _groups(self) -> Sequence[str]:
        if not self._options.all_groups:
            return self._options.groups
        return [one.id for one in list_groups(self._cluster) if one.protocol_type in {CONSUMER_PROTOCOL, ""}]


def _reason(problem: ClientError) -> str:
    return _REASONS.get(problem.error, str(problem))
