"""A pipeline's files, YAML and Python, as entries with their lines.

A directory is one pipeline: all its files in the order of their names. Python files are run, with `ottla.pipelines` collecting
what they declare; YAML files are only read. `${NAME}` and `${NAME:-default}` in YAML stand for what the environment says.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ottla.pipelines.building import build
from ottla.pipelines.checks import check
from ottla.pipelines.declaring import collecting
from ottla.pipelines.schemas import check_schemas
from ottla.pipelines.spec import Entry, Pipeline, Place, Problem, Refused

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SECTIONS = {"sources": "source", "steps": "step", "sinks": "sink"}
_HEAD = ("name", "cluster", "spark")
_SUFFIXES = (".yaml", ".yml", ".py")


def load(path: str, cluster: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline in a file or directory, checked; raises `Refused` with all that is wrong with it."""
    files = _files(path)
    entries: list[Entry] = []
    problems: list[Problem] = []
    for file in files:
        try:
            entries += read_python(file) if file.endswith(".py") else read_yaml(file)
        except Refused as refused:
            problems += refused.problems
    if problems:
        raise Refused(problems)
    if cluster:
        entries.append(Entry("pipeline", "", Place(files[0], 1), {"cluster": cluster}))
    pipeline, problems = build(entries, Path(path).resolve().stem)
    pipeline, more = check(pipeline)
    problems += more
    problems += check_schemas(pipeline)
    if problems:
        raise Refused(set(problems))
    return pipeline


def _files(path: str) -> list[str]:
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith((".yaml", ".yml")) or _declares(path, name))
        if not names:
            raise Refused(
                [Problem(Place(path, 0), "there is no pipeline in this directory: no .yaml, and no .py that declares one")]
            )
        return [os.path.join(path, name) for name in names]
    if not os.path.isfile(path):
        raise Refused([Problem(Place(path, 0), "there is no such file or directory")])
    if not path.endswith(_SUFFIXES):
        raise Refused([Problem(Place(path, 0), f"a pipeline is a file that ends in {', '.join(_SUFFIXES)}, or a directory")])
    return [path]


def _declares(directory: str, name: str) -> bool:
    """Whether a Python file of a directory belongs to its pipeline: generators of data may lie beside it."""
    if not name.endswith(".py"):
        return False
    return "ottla.pipelines" in Path(directory, name).read_text(encoding="utf-8").replace(
        "ottla import pipelines", "ottla.pipelines"
    )


# ---- Python --------------------------------------------------------------------------------------------------------------


def read_python(file: str) -> list[Entry]:
    """Run a file and take what it declares."""
    folder = str(Path(file).resolve().parent)
    sys.path.insert(0, folder)
    try:
        with collecting(file) as entries:
            runpy.run_path(file, run_name="__ottla_pipeline__")
    except SyntaxError as problem:
        raise Refused([Problem(Place(file, problem.lineno or 1), f"this is not Python: {problem.msg}")]) from None
    except Exception as problem:  # whatever a user's file raises
        frames = [one for one in traceback.extract_tb(problem.__traceback__) if one.filename == file]
        line = (frames[-1].lineno if frames else 1) or 1
        raise Refused([Problem(Place(file, line), f"{type(problem).__name__}: {problem}")]) from None
    finally:
        sys.path.remove(folder)
    return entries


# ---- YAML ----------------------------------------------------------------------------------------------------------------


def read_yaml(file: str) -> list[Entry]:
    """Read a file; every key keeps its line."""
    try:
        with open(file, encoding="utf-8") as stream:
            root = yaml.compose(stream, yaml.SafeLoader)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark is not None else 1
        raise Refused([Problem(Place(file, line), f"this is not YAML: {problem.problem or problem.context}")]) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise Refused([Problem(Place(file, 1), f"the file cannot be read: {problem}")]) from None
    reading = _Reading(file)
    given = reading.value(root, ()) if root is not None else {}
    if not isinstance(given, dict):
        raise Refused(
            [Problem(Place(file, 1), "a pipeline holds name, cluster, sources, steps and sinks: see docs/pipelines.md")]
        )
    entries = []
    head = {key: value for key, value in given.items() if key not in _SECTIONS}
    for key in head:
        if key not in _HEAD:
            reading.refuse((key,), f"{key!r} is not known here: allowed are {', '.join((*_HEAD, *_SECTIONS))}")
    entries.append(Entry("pipeline", str(head.get("name", "")), Place(file, 1), head, reading.lines))
    for section, kind in _SECTIONS.items():
        found = given.get(section) or {}
        if not isinstance(found, dict):
            reading.refuse((section,), f"{section} is to hold names with what belongs to each")
            continue
        for name, value in found.items():
            if not isinstance(value, dict):
                reading.refuse((section, name), f"{kind} {name} is to hold keys and values")
                continue
            path = (section, name)
            lines = {one[2:]: line for one, line in reading.lines.items() if one[:2] == path and len(one) > 2}
            entries.append(Entry(kind, name, Place(file, reading.lines[path]), value, lines))
    if reading.problems:
        raise Refused(reading.problems)
    return entries


class _Reading:
    """YAML's nodes as values, with the line of each key."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[tuple[str, ...], int] = {}
        self.problems: list[Problem] = []
        self._make = yaml.SafeLoader("").construct_object

    def refuse(self, path: tuple[str, ...], message: str) -> None:
        self.problems.append(Problem(Place(self.file, self.lines.get(path, 1)), message))

    def value(self, node: yaml.Node, path: tuple[str, ...]) -> Any:
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(self._make(key_node))
                inner = (*path, key)
                if key in found:
                    self.problems.append(Problem(Place(self.file, key_node.start_mark.line + 1), f"{key} is there twice"))
                self.lines[inner] = key_node.start_mark.line + 1
                if key == "sql":  # lines in it are counted from where its text begins
                    self.lines[inner] = value_node.start_mark.line + (
                        2 if getattr(value_node, "style", "") in ("|", ">") else 1
                    )
                found[key] = self.value(value_node, inner)
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self.value(one, path) for one in node.value]
        made = self._make(node)
        return self._filled(made, path) if isinstance(made, str) else made

    def _filled(self, text: str, path: tuple[str, ...]) -> str:
        def one(match: re.Match[str]) -> str:
            found = os.environ.get(match[1], match[2])
            if found is None:
                self.refuse(path, f"the environment has no {match[1]}: set it, or write ${{{match[1]}:-default}}")
                return ""
            return found

        return _VARIABLE.sub(one, text)
