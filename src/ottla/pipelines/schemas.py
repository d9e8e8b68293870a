"""The schema that the values of a source are read with: the one that is given, the one kept from before, the registry's newest,
or what the first records look like.

Guards: a schema that cannot be columns is told with file and line before anything runs, and without Spark. What was not given
but found is written down beside the checkpoints: a restart has the same columns, whatever was registered since.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ottla.pipelines.building import TEXT_FORMATS
from ottla.pipelines.checks import RESERVED
from ottla.pipelines.infer import SAMPLE, infer
from ottla.pipelines.keeping import keep
from ottla.pipelines.spec import Decode, Pipeline, Place, Problem, Refused, Source

if TYPE_CHECKING:
    from ottla.client import Cluster
    from ottla.pipelines.values import Reader

_INSTALL = 'pip install "ottla[pipelines]"'


class Schema(NamedTuple):
    """How values become columns."""

    text: str = ""
    """Of text, as in CREATE TABLE."""
    reader: Reader | None = None
    """Of Avro and Protobuf."""


def check_schemas(pipeline: Pipeline, *, ask: bool = False) -> list[Problem]:
    """What is wrong with schemas of Avro and Protobuf; those of registries are asked for if it is said so."""
    problems: list[Problem] = []
    for source in pipeline.sources.values():
        if source.decode is None or source.decode.format not in ("avro", "protobuf"):
            continue
        try:
            if _given(source, source.decode) is None and ask:
                _newest(source, source.decode)
        except Refused as refused:
            problems += refused.problems
    return problems


def schema_of(source: Source, directory: Path, cluster: Cluster) -> Schema:
    """The schema of a source that decodes, found and kept in the pipeline's directory if it has to be; raises `Refused`."""
    decode = source.decode
    assert decode is not None
    if decode.format in TEXT_FORMATS:
        return Schema(decode.schema or _inferred(source, directory / "schemas" / f"{source.name}.sql", cluster))
    given = _given(source, decode)
    return Schema(reader=given or _kept(source, decode, directory / "schemas" / f"{source.name}.json"))


# ---- of text -------------------------------------------------------------------------------------------------------------


def _inferred(source: Source, kept: Path, cluster: Cluster) -> str:
    if kept.exists():
        return kept.read_text(encoding="utf-8")
    found = infer(_first_values(source, cluster))
    if found is None:
        words = f"source {source.name} has no schema, and its topic no records to infer one from: name a schema"
        raise Refused([Problem(source.place, words)])
    keep(kept, found)
    return found


def _first_values(source: Source, cluster: Cluster) -> list[bytes | None]:
    from ottla.client import read  # noqa: PLC0415 - one that is only checked reads nothing

    values: list[bytes | None] = []
    with read(list(source.topics), cluster=cluster, columns=["value"], max_bytes=1 << 20) as reader:
        for batch in reader:
            values += batch["value"][: SAMPLE - len(values)].to_pylist()
            if len(values) >= SAMPLE:
                break
    return values


# ---- of Avro and Protobuf ------------------------------------------------------------------------------------------------


def _given(source: Source, decode: Decode) -> Reader | None:
    """The schema that the pipeline's files name; None where they leave it to the registry."""
    named = decode.schema if decode.format == "avro" else decode.descriptor
    if named is None:
        return None
    inline = decode.format == "avro" and named.lstrip()[:1] in ("{", "[", '"')
    what = "the schema" if inline else named
    content = named.encode() if inline else _file(source, decode, named)
    reader_of = _modules(source)
    texts = (content.decode(errors="replace") if decode.format == "avro" else base64.b64encode(content).decode(),)
    return _usable(source, reader_of(decode.format, texts, decode.message or "", decode.registry or ""), what)


def _file(source: Source, decode: Decode, named: str) -> bytes:
    place = decode.place or source.place
    path = os.path.join(os.path.dirname(os.path.abspath(place.file)), named)
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise _refused(source, f"{named} cannot be read: {problem.strerror}") from None


def _kept(source: Source, decode: Decode, kept: Path) -> Reader:
    reader_of = _modules(source)
    if kept.exists():
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["format"] == decode.format:
            message = decode.message or known["message"]
            return _usable(source, reader_of(decode.format, tuple(known["texts"]), message, decode.registry or ""), str(kept))
    found = _newest(source, decode)
    keep(kept, json.dumps({"format": found.format, "texts": found.texts, "message": found.message}, indent=1))
    return found


def _newest(source: Source, decode: Decode) -> Reader:
    """The newest schema in the registry for the values of the source's topic."""
    _modules(source)
    from ottla.pipelines.kinds import NotMapped  # noqa: PLC0415 - only what is decoded has to be installed
    from ottla.pipelines.registry import NotRegistered, RegistryFailed, registry  # noqa: PLC0415
    from ottla.pipelines.values import of_registered  # noqa: PLC0415

    if len(source.topics) != 1:
        raise _refused(source, "several topics may have several schemas in the registry: name the one to read them with")
    subject = f"{source.topics[0]}-value"
    address = decode.registry or ""
    try:
        found = of_registered(registry(address).newest(subject), decode.format, decode.message or "", address)
    except (NotRegistered, RegistryFailed) as problem:
        raise _refused(source, str(problem)) from None
    except NotMapped as problem:
        raise _refused(source, f"{subject} cannot be columns: {problem}") from None
    return _usable(source, found, subject)


def _usable(source: Source, reader: Reader, what: str) -> Reader:
    from ottla.pipelines.kinds import NotMapped, columns  # noqa: PLC0415 - only what is decoded has to be installed
    from ottla.pipelines.values import row_of  # noqa: PLC0415

    try:
        names = columns(row_of(reader))
    except ImportError as problem:
        raise _refused(source, f"{problem.name} is not installed: {_INSTALL}") from None
    except NotMapped as problem:
        raise _refused(source, f"{what} cannot be columns: {problem}") from None
    taken = sorted(name for name in names if name.lower() in RESERVED)
    if taken:
        raise _refused(source, f"{', '.join(taken)} is taken, use another name")
    return reader


def _modules(source: Source) -> type[Reader]:
    try:
        from ottla.pipelines.values import Reader  # noqa: PLC0415 - only what is decoded has to be installed
    except ImportError as problem:
        raise _refused(source, f"{problem.name} is not installed: {_INSTALL}") from None
    return Reader


def _refused(source: Source, words: str) -> Refused:
    place: Place = (source.decode.place if source.decode is not None else None) or source.place
    return Refused([Problem(place, f"the schema of source {source.name}: {words}")])
