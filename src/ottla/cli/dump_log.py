"""`ottla dump-log`: what stands in the files of a log. Options and lines are those of Apache Kafka's kafka-dump-log.sh.

Guards: the files are only read, whoever writes them meanwhile; whatever they hold, the end is a line and an exit code (1 where
a file is missing or damaged), never a traceback. Knows no broker, only formats: it starts in no time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

import click

from ottla.cli.dump_decoders import (
    STRING_DECODER,
    OffsetsParser,
    Parser,
    TransactionsParser,
    find_decoder,
    plain_parser,
)
from ottla.cli.dump_entries import Unreadable
from ottla.cli.dump_indexes import dump_aborted, dump_offset_index, dump_snapshot, dump_time_index
from ottla.cli.dump_output import Findings, JsonOutput, Output, TextOutput
from ottla.cli.dump_segments import LOG_SUFFIX, WHOLE, LogView, SegmentDump, follow
from ottla.cli.output import one_line
from ottla.cli.tool import OneLine, json_option

_MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
_POLL_SECONDS: Final = 0.1


class _Bytes(click.IntRange):
    name = "number of bytes"


_BYTES: Final = _Bytes(0, WHOLE)


@click.command("dump-log", cls=OneLine)
@click.option("--files", required=True, metavar="F[,F]", help="The data and index files to show, separated by commas.")
@click.option("--print-data-log", is_flag=True, help="Show the contents of records. Any decoder option does that too.")
@click.option("--deep-iteration", is_flag=True, help="Show records, not only batches. --print-data-log does that too.")
@click.option("--index-sanity-check", is_flag=True, help="Check indexes as a starting broker does, instead of showing them.")
@click.option("--verify-index-only", is_flag=True, help="Hold indexes against the log without showing them.")
@click.option(
    "--max-message-size",
    type=_BYTES,
    default=_MAX_MESSAGE_SIZE,
    show_default=True,
    help="The largest batch that an index may point to.",
)
@click.option("--max-bytes", type=_BYTES, default=WHOLE, show_default=True, help="How much of each .log file to read.")
@click.option("--offsets-decoder", is_flag=True, help="Show records as those of __consumer_offsets.")
@click.option("--transaction-log-decoder", is_flag=True, help="Show records as those of __transaction_state.")
@click.option(
    "--key-decoder-class",
    is_flag=False,
    flag_value=STRING_DECODER,
    metavar="NAME",
    help="How to show keys: a decoder of Apache Kafka, or a Python function as module:function.",
)
@click.option("--value-decoder-class", is_flag=False, flag_value=STRING_DECODER, metavar="NAME", help="How to show values.")
@click.option("--skip-record-metadata", is_flag=True, help="Of a record, show only key and value.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines as Apache Kafka's tool has them, or one JSON object a line.",
)
@json_option
@click.option(
    "--follow",
    "following",
    is_flag=True,
    help="Go on with what is written to the last file, and with the segments after it, until Ctrl-C.",
)
@click.option("--cluster-metadata-decoder", is_flag=True, hidden=True)
@click.option("--remote-log-metadata-decoder", is_flag=True, hidden=True)
def command(
    files: str,
    print_data_log: bool,
    deep_iteration: bool,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_message_size: int,
    max_bytes: int,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    key_decoder_class: str | None,
    value_decoder_class: str | None,
    skip_record_metadata: bool,
    format_: str,
    as_json: bool,
    following: bool,
    cluster_metadata_decoder: bool,
    remote_log_metadata_decoder: bool,
) -> None:
    """Show what stands in the files of a log: .log, .index, .timeindex, .txnindex and .snapshot.

    Options and lines are those of Apache Kafka's kafka-dump-log.sh. A broker may be writing the files. The exit code is 1 if a
    file is missing or damaged; a finding (an index that does not fit its log, a gap between offsets) is told at the end.
    """
    if cluster_metadata_decoder or remote_log_metadata_decoder:
        raise click.UsageError("the decoders for KRaft's metadata and for remote log metadata are not supported")
    paths = files.split(",")
    if following and not paths[-1].endswith(LOG_SUFFIX):
        raise click.UsageError(f"--follow needs a {LOG_SUFFIX} file as the last of --files, not {paths[-1]}")
    if following and max_bytes != WHOLE:
        raise click.UsageError("--follow and --max-bytes do not go together")
    shown = print_data_log or offsets_decoder or transaction_log_decoder or bool(key_decoder_class or value_decoder_class)
    parser = _parser(offsets_decoder, transaction_log_decoder, key_decoder_class, value_decoder_class) if shown else None
    stdout = sys.stdout.buffer
    metadata = not skip_record_metadata
    output: Output = TextOutput(stdout, metadata=metadata)
    if as_json or format_ == "json":
        output = JsonOutput(stdout, metadata=metadata, contents=shown)
    dump = Dump(
        output, LogView(deep_iteration or shown, parser, max_bytes), index_sanity_check, verify_index_only, max_message_size
    )
    for path in paths[:-1] if following else paths:
        dump.file(path)
    if following:
        dump.follow(paths[-1], lambda: _pause.wait(_POLL_SECONDS))
    dump.end()
    sys.exit(1 if dump.damaged else 0)


_pause = threading.Event()


def _parser(offsets: bool, transactions: bool, key_decoder: str | None, value_decoder: str | None) -> Parser:
    if offsets:
        return OffsetsParser()
    if transactions:
        return TransactionsParser()
    return plain_parser(find_decoder(key_decoder or STRING_DECODER), find_decoder(value_decoder or STRING_DECODER))


class Dump:
    """The files, one after the other. `damaged`: one was missing, or not what it should be."""

    __slots__ = ("_findings", "_max_message_size", "_output", "_sanity_only", "_verify_only", "_view", "damaged")

    def __init__(self, output: Output, view: LogView, sanity_only: bool, verify_only: bool, max_message_size: int) -> None:
        self._output = output
        self._view = view
        self._sanity_only = sanity_only
        self._verify_only = verify_only
        self._max_message_size = max_message_size
        self._findings = Findings()
        self.damaged = False

    def file(self, path: str) -> None:
        """Show a file by what its name says it is."""
        self._survive(path, lambda: self._by_suffix(path))

    def follow(self, path: str, wait: Callable[[], object]) -> None:
        """Show a segment and all that comes after it, until Ctrl-C: that is its good end, whatever was found before."""
        try:
            self._survive(path, lambda: follow(path, self._segment, self._output.flush, wait))
        except KeyboardInterrupt:
            self.damaged = False

    def end(self) -> None:
        """Tell what was found."""
        self._output.flush()
        for line in self._findings.lines():
            click.echo(one_line(line), err=True)

    def _survive(self, path: str, show: Callable[[], None]) -> None:
        try:
            show()
        except Unreadable as problem:
            self._complain(str(problem))
        except BrokenPipeError:
            raise  # of our own output: who read it has gone
        except FileNotFoundError as problem:
            # A segment without aborted transactions has no .txnindex: Apache's tool shows none, and is content.
            absent = path.endswith(".txnindex")
            self._complain(f"ottla dump-log: {problem.filename or path} does not exist", damaged=not absent)
        except OSError as problem:
            self._complain(f"ottla dump-log: {problem.filename or path} cannot be read: {problem.strerror or problem}")

    def _complain(self, words: str, *, damaged: bool = True) -> None:
        self.damaged = self.damaged or damaged
        self._output.flush()
        click.echo(one_line(words), err=True)

    def _segment(self, path: str) -> SegmentDump:
        return SegmentDump(path, self._view, self._output, self._findings, self._complain)

    def _by_suffix(self, path: str) -> None:
        suffix = path[path.rfind(".") :]
        if suffix == LOG_SUFFIX:
            segment = self._segment(path)
            try:
                segment.run()
            except BaseException:
                segment.close()
                raise
            segment.finish()
            return
        self._output.file(path)
        match suffix:
            case ".index":
                dump_offset_index(
                    path,
                    self._output,
                    self._findings,
                    sanity_only=self._sanity_only,
                    verify_only=self._verify_only,
                    max_message_size=self._max_message_size,
                )
            case ".timeindex":
                dump_time_index(
                    path, self._output, self._findings, sanity_only=self._sanity_only, verify_only=self._verify_only
                )
            case ".txnindex":
                dump_aborted(path, self._output)
            case ".snapshot":
                dump_snapshot(path, self._output)
            case ".checkpoint":
                self._complain(f"ottla dump-log: {path}: snapshots of KRaft's metadata are not supported")
            case _:
                self._output.flush()
                click.echo(one_line(f"Ignoring unknown file {path}"), err=True)
