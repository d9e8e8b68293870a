"""What commands print: tables on a terminal, lines as Apache Kafka's tools print them elsewhere, or JSON.

Guards: a name that somebody else chose never reaches the terminal raw; what is piped looks the same whatever the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import click

from ottla.model import TopicPartition

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}

Cell = int | float | str | Sequence[TopicPartition] | Sequence[int] | None


class Column(NamedTuple):
    """A title for people, a key for programs."""

    title: str
    key: str


def one_line(text: str) -> str:
    """Text in which nothing ends a line or moves the cursor: line ends and terminal codes are shown as what they are."""
    return text.translate(_CONTROL)


def on_terminal() -> bool:
    """Whether somebody looks at the output."""
    return sys.stdout.isatty()


def print_rows(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, as_json: bool = False, lines: Iterable[str] | None = None
) -> None:
    """All rows at once: as JSON, as a table on a terminal, or as `lines`.

    Without `lines` as most of Apache's tools print them: a column is as wide as its longest cell, and a tab ends it.
    """
    if as_json:
        keys = [column.key for column in columns]
        print_json([dict(zip(keys, map(_value, row), strict=True)) for row in rows])
    elif on_terminal():
        _print_table(columns, rows)
    else:
        for line in lines if lines is not None else _aligned(columns, rows):
            click.echo(line)


def print_json(value: object) -> None:
    """A value for programs."""
    click.echo(json.dumps(value, indent=2))


compact_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""A value in one line, as Apache's tools print it."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal while something goes on; it is told how much is done. Elsewhere nothing is shown."""
    if not (on_terminal() and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - on a terminal only
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _aligned(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    lines = [[column.title for column in columns], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        yield "".join(f"{cell:<{width}}\t" for cell, width in zip(line, widths, strict=True))


def _print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - on a terminal only
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for at, column in enumerate(columns):
        number = bool(rows) and all(isinstance(row[at], int | float | None) for row in rows)
        table.add_column(column.title, justify="right" if number else "left", overflow="fold")
    for row in rows:
        # As text, not as markup: a name in brackets is a name.
        table.add_row(*(Text("-" if cell is None else _text(cell)) for cell in row))
    Console().print(table)


def _text(cell: Cell) -> str:
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        return ",".join(map(str, cell))
    return one_line(str(cell))


def _value(cell: Cell) -> object:
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        return [one._asdict() if isinstance(one, TopicPartition) else one for one in cell]
    return cell
