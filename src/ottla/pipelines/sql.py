"""What SQL and schemas say, read without Spark and without Java: which steps a query reads, which columns a schema has.

Guards: text that does not parse is named with its line. Where Spark knows more SQL than the parser here, a step that names what
it reads (`needs`) is left to Spark alone.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp, parse
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.scope import traverse_scope

_DIALECT = "spark"


class NotSql(ValueError):
    """Text that does not parse; `line` counts from 1."""

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


class Field(NamedTuple):
    """A column of a schema."""

    name: str
    type: str
    required: bool


def references(sql: str) -> tuple[str, ...]:
    """The names that a query reads from, without those that it makes itself and those of a catalog."""
    tree = _statement(sql)
    if not isinstance(tree, exp.Query):
        raise NotSql("a step is a query: let it begin with SELECT, WITH, VALUES or FROM")
    found: dict[str, None] = {}
    for scope in traverse_scope(tree):
        for source in scope.sources.values():
            if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.db:
                found[source.name] = None
    return tuple(found)


def fields(schema: str) -> tuple[Field, ...]:
    """The columns of a schema as CREATE TABLE has them."""
    tree = _statement(f"CREATE TABLE t (\n{schema}\n)", before=1)
    columns = tree.this.expressions if isinstance(tree, exp.Create) and isinstance(tree.this, exp.Schema) else []
    found = []
    for column in columns:
        kind = column.kind if isinstance(column, exp.ColumnDef) else None
        if kind is None or kind.is_type(exp.DataType.Type.USERDEFINED):
            raise NotSql(f"{column.sql(_DIALECT)} is no column with a type: write it like id BIGINT, name STRING")
        required = any(isinstance(one.kind, exp.NotNullColumnConstraint) for one in column.constraints)
        found.append(Field(column.name, kind.sql(_DIALECT), required))
    if not found:
        raise NotSql("there are no columns: write them like id BIGINT, name STRING")
    return tuple(found)


def _statement(sql: str, before: int = 0) -> exp.Expr:
    """The one statement in a text; `before` lines of it are not the user's."""
    try:
        trees = [tree for tree in parse(sql, dialect=_DIALECT) if tree is not None]
    except ParseError as problem:
        first = problem.errors[0] if problem.errors else {}
        near = f" near {first['highlight']!r}" if first.get("highlight") else ""
        words = str(first.get("description") or problem).rstrip(".")
        raise NotSql(f"{words}{near}", max(int(first.get("line") or 1) - before, 1)) from None
    except SqlglotError as problem:
        raise NotSql(str(problem).splitlines()[0]) from None
    if len(trees) != 1:
        raise NotSql(f"there are {len(trees)} statements where one is expected")
    statement: exp.Expr = trees[0]
    return statement
