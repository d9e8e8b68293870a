"""The figures as a table: on the terminal, in Markdown, and raw as JSON. Pure, except for `write`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench.figures import SECTIONS, Line, Samples, Section, Subject, met, missed, ratio

_HEAD = ("figure", "unit", "Apache Kafka, cold", "Apache Kafka, warm", "Ottla", "ratio", "bar", "met")
_MET = {True: "yes", False: "NO", None: ""}
_KEPT = "What was left out of this run is shown as measured at"
_LEFT_OUT = "Left out of this run"
_DATED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC: ")


def sections_with_figures(samples: Samples) -> list[Section]:
    """What was measured, without the lines that nobody has a figure for."""
    found = []
    for section in SECTIONS:
        lines = tuple(line for line in section.lines if any(samples.of(line.key, subject) for subject in Subject))
        if lines:
            found.append(Section(section.title, lines))
    return found


def terminal(samples: Samples) -> str:
    """The table for a terminal."""
    found = [(section.title, [_row(samples, line) for line in section.lines]) for section in sections_with_figures(samples)]
    rows = [row for _, rows in found for row in rows]
    widths = [max(len(row[column]) for row in [_HEAD, *rows]) for column in range(len(_HEAD))]

    def text(row: tuple[str, ...]) -> str:
        cells = (
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    lines = [text(_HEAD)]
    for title, section_rows in found:
        lines += ["", title, *map(text, section_rows)]
    return "\n".join([*lines, "", verdict(samples), *(f"Note: {note}." for note in samples.notes)])


def markdown(samples: Samples, facts: dict[str, str]) -> str:
    """The page for docs/."""
    out = [
        "# Ottla beside Apache Kafka",
        "",
        "Written by `make bench`: do not edit. The same load from a process of its own, on one broker at a time while the other"
        " stands by, in turns, each with a fresh directory on the same disk. The client is librdkafka; for transactions,"
        " commits, groups and compaction it is one at the level of the wire: the broker is measured, not a client's waits and"
        " intervals. Before each produce of *the same load* memory is touched and given back: the host of a virtual machine"
        " takes free pages away after two seconds, and getting them again (here up to 2.4 s/GB) would count as the broker's.",
        "",
        "Each figure is a median; its spread, from least to most, stands in brackets. *Cold* is right after the start; *warm*"
        " is after the JVM's figures settled. *Ratio* is Ottla's figure divided by the warmed-up Apache Kafka's: of costs (no"
        " arrow) less is better, of rates (↑) more. *Bar* is the most (≤) or the least (≥) that the ratio may be, or with a"
        " unit, Ottla's figure.",
        "",
        "![Ottla's figures as ratios to Apache Kafka's](bench.svg)",
        "",
        verdict(samples),
        "",
    ]
    for section in sections_with_figures(samples):
        out += [f"## {section.title}", "", _cells(_HEAD), "|---|---|---:|---:|---:|---:|---:|---|"]
        out += [_cells(_row(samples, line)) for line in section.lines]
        out.append("")
    if samples.notes:
        out += ["## Notes", "", *(f"- {note}" for note in samples.notes), ""]
    out += ["## Measured on", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    return "\n".join(out)


def verdict(samples: Samples) -> str:
    """One sentence about the bars."""
    barred = [line for section in SECTIONS for line in section.lines if met(samples, line) is not None]
    failed = missed(samples)
    if not barred:
        return "No bar was measured."
    if not failed:
        return f"All {len(barred)} bars that were measured are met."
    return f"{len(barred) - len(failed)} of {len(barred)} bars are met; missed: {'; '.join(line.label for line in failed)}."


def keep_earlier(directory: Path, samples: Samples) -> None:
    """Keep what the page in `directory` says of scenarios that were not run now, and say from when that is."""
    try:
        earlier = json.loads((directory / "bench.json").read_text())
    except FileNotFoundError:
        return
    if samples.keep(earlier["samples"]):
        measured = earlier["facts"]["date"]
        samples.note(f"{_KEPT} {measured} or before")
        for note in earlier["notes"]:
            if not note.startswith((_LEFT_OUT, _KEPT)):
                samples.note(note if _DATED.match(note) else f"{measured}: {note}")


def write(directory: Path, samples: Samples, facts: dict[str, str]) -> None:
    """The page and the raw figures."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "bench.md").write_text(markdown(samples, facts))
    (directory / "bench.json").write_text(
        json.dumps({"facts": facts, "notes": samples.notes, "samples": samples.raw()}, indent=1) + "\n"
    )


def number(value: float) -> str:
    """Three digits that count, and no more."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"


def _row(samples: Samples, line: Line) -> tuple[str, ...]:
    against = ratio(samples, line)
    return (
        line.label + (" ↑" if line.more_is_better else ""),
        line.unit,
        *(_figure(samples, line, subject) for subject in (Subject.APACHE_COLD, Subject.APACHE, Subject.OTTLA)),
        "" if against is None else number(against),
        "" if line.bar is None else str(line.bar),
        _MET[met(samples, line)],
    )


def _figure(samples: Samples, line: Line, subject: Subject) -> str:
    value, taken = samples.figure(line.key, subject), samples.of(line.key, subject)
    if value is None:
        return ""
    return number(value) if len(taken) == 1 else f"{number(value)} ({number(min(taken))}-{number(max(taken))})"


def _cells(row: tuple[str, ...]) -> str:
    return f"| {' | '.join(row)} |"
