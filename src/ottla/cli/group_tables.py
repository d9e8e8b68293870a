"""How `ottla consumer-groups` shows what it found: text as Apache Kafka's tool prints it, tables on a terminal, or JSON.

Guards: what a script reads keeps Apache's columns, widths and words, and its order of output and error stream. Two things are
not copied: rows of --reset-offsets and --delete-offsets stand in lines of their own, which Apache Kafka 3.9 forgot, and the
last line ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import click

from ottla.cli import output
from ottla.cli.group_views import REBALANCING, GroupView
from ottla.cli.output import Cell, one_line, print_json, print_rows
from ottla.client.admin.groups import GroupDescription, ListedGroup, Member
from ottla.model import TopicPartition

_NONE: Final = "-"


class Column(NamedTuple):
    """A title, the least width in the text form (none for the last), and a key for programs."""

    title: str
    width: int
    key: str


_OFFSETS: Final = (
    Column("GROUP", -15, "group"),
    Column("TOPIC", -15, "topic"),
    Column("PARTITION", 10, "partition"),
    Column("CURRENT-OFFSET", 15, "currentOffset"),
    Column("LOG-END-OFFSET", 15, "logEndOffset"),
    Column("LAG", 15, "lag"),
    Column("CONSUMER-ID", -15, "consumerId"),
    Column("HOST", -15, "host"),
    Column("CLIENT-ID", 0, "clientId"),
)
"""A negative width grows with its cells."""

_MEMBERS: Final = (
    Column("GROUP", -15, "group"),
    Column("CONSUMER-ID", -15, "consumerId"),
    Column("GROUP-INSTANCE-ID", -17, "groupInstanceId"),
    Column("HOST", -15, "host"),
    Column("CLIENT-ID", -15, "clientId"),
    Column("#PARTITIONS", 15, "partitions"),
    Column("ASSIGNMENT", 0, "assignment"),
)
_STATES: Final = (
    Column("GROUP", -25, "group"),
    Column("COORDINATOR (ID)", 25, "coordinator"),
    Column("ASSIGNMENT-STRATEGY", 20, "assignmentStrategy"),
    Column("STATE", 15, "state"),
    Column("#MEMBERS", 0, "members"),
)
_RESETS: Final = (
    Column("GROUP", 30, "group"),
    Column("TOPIC", 30, "topic"),
    Column("PARTITION", 10, "partition"),
    Column("NEW-OFFSET", 15, "newOffset"),
)
_DELETED: Final = (Column("TOPIC", 30, "topic"), Column("PARTITION", 15, "partition"), Column("STATUS", 15, "status"))


class Shown:
    """The two streams of one run. A part begins after an empty line, unless the table before it left its last line open:
    Apache's tool writes the line end before each row, not after it."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.rich = not as_json and output.on_terminal()
        self._left_open = False

    def line(self, words: str = "") -> None:
        click.echo(one_line(words))
        self._left_open = False

    def error(self, words: str) -> None:
        """What Apache's tool tells as an error: on the output, and without ending."""
        self._begin()
        self.line(f"Error: {words}")

    def warning(self, words: str) -> None:
        self._begin()
        self.line(f"Warn: {words}")

    def remark(self, words: str) -> None:
        """Beside the output."""
        click.echo(err=True)
        click.echo(one_line(words), err=True)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, leaves_open: bool = False) -> None:
        """Columns and rows."""
        lines = [[column.title for column in columns], *([_text(cell) for cell in row] for row in rows)]
        widths = [
            max(-column.width, *(len(line[at]) for line in lines)) if column.width < 0 else column.width
            for at, column in enumerate(columns)
        ]
        plain = (" ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines)
        if not self.rich:
            self._begin()
        print_rows([output.Column(column.title, column.key) for column in columns], rows, lines=plain)
        self._left_open = leaves_open

    def _begin(self) -> None:
        if not self._left_open:
            click.echo()


def _text(cell: Cell) -> str:
    return _NONE if cell is None else one_line(str(cell))


def _objects(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    return [{column.key: cell for column, cell in zip(columns, row, strict=True)} for row in rows]


# ---- lists ---------------------------------------------------------------------------------------------------------------


def show_list(shown: Shown, groups: Sequence[ListedGroup], *, types: bool, states: bool) -> None:
    """Names, with type and state if asked for."""
    if shown.as_json:
        print_json([{"group": one.id, "type": one.type.capitalize(), "state": one.state} for one in groups])
        return
    columns = [Column("GROUP", max([15, *(len(one.id) for one in groups)]) + 10, "group")]
    columns += [Column("TYPE", 20, "type")] if types else []
    columns += [Column("STATE", 20, "state")] if states else []
    rows = [[one.id, *([one.type.capitalize()] if types else []), *([one.state] if states else [])] for one in groups]
    if shown.rich:
        shown.table(columns, rows)
        return
    if types or states:
        rows.insert(0, [column.title for column in columns])
    for row in rows:
        padded = " ".join(f"{cell or 'Unknown':<{column.width}}" for cell, column in zip(row, columns, strict=True))
        shown.line(padded if types or states else row[0])


# ---- descriptions --------------------------------------------------------------------------------------------------------


def _has_something(shown: Shown, group: GroupDescription) -> bool:
    """Whether there is a group to show; what is special about it is told."""
    if group.state == "Dead":
        shown.error(f"Consumer group '{group.id}' does not exist.")
        return False
    if group.state == "Empty":
        shown.remark(f"Consumer group '{group.id}' has no active members.")
    elif group.state in REBALANCING:
        shown.remark(f"Warning: Consumer group '{group.id}' is rebalancing.")
    return True


def show_offsets(shown: Shown, views: Sequence[GroupView]) -> None:
    """Partitions with their lag."""
    tables = [
        (
            view.group,
            [
                (view.group.id, row.topic, row.partition, row.offset, row.end, row.lag, *_member_cells(row.member))
                for row in view.partitions
            ],
        )
        for view in views
    ]
    if shown.as_json:
        listed = [{"group": group.id, "state": group.state, "partitions": _objects(_OFFSETS, rows)} for group, rows in tables]
        print_json(listed)
        return
    for group, rows in tables:
        if _has_something(shown, group) and rows:
            shown.table(_OFFSETS, rows, leaves_open=True)


def _member_cells(member: Member | None) -> tuple[Cell, Cell, Cell]:
    return (None, None, None) if member is None else (member.id, member.host, member.client_id)


def show_members(shown: Shown, groups: Sequence[GroupDescription], *, verbose: bool) -> None:
    """Who is in the groups."""
    if shown.as_json:
        print_json([_members_object(group) for group in groups])
        return
    for group in groups:
        _has_something(shown, group)
        columns, rows = _member_table(group, verbose=verbose, topics=shown.rich)
        shown.table(columns, rows)


def _member_table(group: GroupDescription, *, verbose: bool, topics: bool) -> tuple[list[Column], list[list[Cell]]]:
    named = any(member.instance_id for member in group.members)
    # Apache's tool leaves a space for the last column also where it is not shown.
    columns = [
        *_MEMBERS[:2],
        *([_MEMBERS[2]] if named else []),
        *_MEMBERS[3:6],
        _MEMBERS[6] if verbose else _MEMBERS[6]._replace(title=""),
    ]
    rows: list[list[Cell]] = [
        [
            group.id,
            member.id,
            *([member.instance_id or ""] if named else []),
            member.host,
            member.client_id,
            len(member.assignment),
            _assignment(member.assignment, topics=topics) if verbose else "",
        ]
        for member in group.members
    ]
    return columns, rows


def _members_object(group: GroupDescription) -> dict[str, object]:
    members = [
        {
            "consumerId": member.id,
            "groupInstanceId": member.instance_id,
            "host": member.host,
            "clientId": member.client_id,
            "assignment": [tp._asdict() for tp in sorted(member.assignment)],
        }
        for member in group.members
    ]
    return {"group": group.id, "state": group.state, "members": members}


def _assignment(partitions: Sequence[TopicPartition], *, topics: bool) -> str | None:
    """The numbers of each topic in brackets. Apache's tool leaves the topics' names out; a terminal shows them."""
    numbers: dict[str, list[str]] = {}
    for tp in partitions:
        numbers.setdefault(tp.topic, []).append(str(tp.partition))
    parts = sorted(f"{topic if topics else ''}({','.join(sorted(some))})" for topic, some in numbers.items())
    return ", ".join(parts) or None


def show_states(shown: Shown, groups: Sequence[GroupDescription], addresses: dict[int, str]) -> None:
    """Each group in a line: who coordinates it, and how it is."""
    rows = [
        (group.id, f"{addresses[group.coordinator]}  ({group.coordinator})", group.assignor, group.state, len(group.members))
        for group in groups
    ]
    if shown.as_json:
        print_json(_objects(_STATES, rows))
        return
    for group, row in zip(groups, rows, strict=True):
        if _has_something(shown, group):
            # The first column is as wide as the second needs to be: so it is in Apache's tool.
            first = _STATES[0]._replace(width=max(25, len(str(row[1]))))
            shown.table((first, *_STATES[1:]), [row])


# ---- changes -------------------------------------------------------------------------------------------------------------


def show_resets(shown: Shown, resets: dict[str, dict[TopicPartition, int]]) -> None:
    """Where groups will begin, or begin from now on."""
    rows = [(group, *tp, offset) for group, offsets in resets.items() for tp, offset in sorted(offsets.items())]
    if shown.as_json:
        print_json(_objects(_RESETS, rows))
    elif resets:
        shown.table(_RESETS, rows, leaves_open=True)


def show_deleted_offsets(shown: Shown, outcomes: dict[TopicPartition, str | None]) -> None:
    """What became of each partition: None is success. A topic that does not exist has no partition to name."""
    rows = [
        (tp.topic, tp.partition if tp.partition >= 0 else "Not Provided", "Successful" if words is None else f"Error: :{words}")
        for tp, words in sorted(outcomes.items())
    ]
    if shown.as_json:
        print_json(_objects(_DELETED, rows))
    else:
        shown.table(_DELETED, rows, leaves_open=True)
