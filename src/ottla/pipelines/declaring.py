"""Pipelines in Python: `source`, `step`, `sink` and `pipeline` write down what a file declares.

Keywords are the keys of YAML; `from` is spelled `input`. Functions name what they read by their parameters; one that is called
`spark` gets Spark's session. Outside of `ottla pipeline` a decorated function stays what it was.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from ottla.pipelines.spec import Entry, Place

Function = TypeVar("Function", bound=Callable[..., Any])


class _Collecting:
    """What the file that is being run has declared so far."""

    entries: list[Entry] | None = None
    file = ""


@contextmanager
def collecting(file: str) -> Iterator[list[Entry]]:
    """Collect what is declared meanwhile."""
    _Collecting.entries, _Collecting.file = [], file
    try:
        yield _Collecting.entries
    finally:
        _Collecting.entries = None


def _add(kind: str, name: str, line: int, given: Mapping[str, Any], function: Callable[..., Any] | None = None) -> None:
    if _Collecting.entries is None:
        return
    written = {"from" if key == "input" else key: value for key, value in given.items() if value is not None}
    needs = tuple(inspect.signature(function).parameters) if function is not None else ()
    _Collecting.entries.append(Entry(kind, name, Place(_Collecting.file, line), written, {}, function, needs))


def _caller() -> int:
    return sys._getframe(2).f_lineno


def pipeline(
    name: str | None = None, *, cluster: str | Mapping[str, str] | None = None, spark: Mapping[str, Any] | None = None
) -> None:
    """The pipeline's name, its cluster and Spark's settings."""
    _add("pipeline", name or "", _caller(), {"name": name, "cluster": cluster, "spark": spark})


@overload
def source(name: Function, /) -> Function: ...
@overload
def source(name: str, /, **given: Any) -> None: ...
def source(name: str | Function, /, **given: Any) -> Function | None:
    """Declare a source by its keys, or (as a decorator) by a function that returns a DataFrame."""
    if isinstance(name, str):
        _add("source", name, _caller(), given)
        return None
    _add("source", name.__name__, name.__code__.co_firstlineno, {}, name)
    return name


@overload
def step(name: Function, /) -> Function: ...
@overload
def step(name: str, /, **given: Any) -> None: ...
def step(name: str | Function, /, **given: Any) -> Function | None:
    """Declare a step by SQL, or (as a decorator) by a function of DataFrames that returns one."""
    if isinstance(name, str):
        _add("step", name, _caller(), given)
        return None
    _add("step", name.__name__, name.__code__.co_firstlineno, {}, name)
    return name


@overload
def sink(name: str, /, **given: Any) -> None: ...
@overload
def sink(**given: Any) -> Callable[[Function], Function]: ...
def sink(name: str | None = None, /, **given: Any) -> Callable[[Function], Function] | None:
    """Declare a sink by its keys, or (as a decorator) with the function that makes its rows."""
    line = _caller()
    if name is not None:
        _add("sink", name, line, given)
        return None

    def decorate(function: Function) -> Function:
        _add("step", function.__name__, line, {}, function)
        _add("sink", function.__name__, line, given)
        return function

    return decorate
