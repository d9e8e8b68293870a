"""The figures as a picture: for each cost, Ottla's and the cold Apache Kafka's as a multiple of the warmed-up one's.

An SVG with a ground of its own, whose colours follow the reader's theme, so that it can be read on light and on dark pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.figures import Against, Line, Samples, Subject, ratio
from bench.report import number, sections_with_figures

# Each colour stands for one role, so that a dark theme can give that role a colour of its own.
_INK, _GROUND, _FAINT, _OTTLA, _COLD, _BAR = "#1f2329", "#fdfdfe", "#c9ced6", "#2a78d1", "#e0a458", "#c2334d"
_DARK = {_INK: "#e6e9ee", _GROUND: "#15181d", _FAINT: "#4a515c", _OTTLA: "#6cb0ff", _COLD: "#b98338", _BAR: "#ff7088"}
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)


def draw(path: Path, samples: Samples) -> bool:
    """Write the picture; False where nothing was measured on both brokers."""
    lines = _comparable(samples)
    if not lines:
        return False
    settings: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": "ottla", "font.family": "sans-serif", "font.size": 10,
        "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
    }  # fmt: skip
    with mpl.rc_context(settings):
        figure = _figure(samples, lines)
        figure.savefig(path, format="svg", facecolor=_GROUND, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.25)
    path.write_text(_themed(path.read_text()))
    return True


def _comparable(samples: Samples) -> list[Line]:
    """The costs with a bar, and those of the largest numbers of partitions and connections."""
    wanted = []
    for section in sections_with_figures(samples):
        for line in section.lines:
            grown = line.key.startswith(("partitions.1000.", "connections.5000."))
            if (line.bar or grown) and ratio(samples, line):
                wanted.append(line)
    return wanted


def _figure(samples: Samples, lines: list[Line]) -> Figure:
    figure = Figure(figsize=(9, 0.46 * len(lines) + 1.2))
    axes = figure.subplots()
    axes.set_xscale("log")  # as much cheaper looks as long as as much dearer
    shown = [1.0]
    for place, line in enumerate(lines):
        cold, warm = samples.figure(line.key, Subject.APACHE_COLD), samples.figure(line.key, Subject.APACHE)
        pair = bool(cold and warm)
        ours = _cost(line, ratio(samples, line) or 1.0)
        _bar(axes, place - 0.17 if pair else place, ours, _OTTLA)
        shown.append(ours)
        if cold and warm:
            theirs = _cost(line, cold / warm)
            _bar(axes, place + 0.17, theirs, _COLD)
            shown.append(theirs)
        if line.bar is not None and line.bar.against is Against.RATIO:
            limit = _cost(line, line.bar.limit)
            axes.plot([limit] * 2, [place - 0.4, place + 0.4], color=_BAR, linewidth=2)
            shown.append(limit)
    left, right = min(shown) / 1.7, max(shown) * 1.7
    axes.axvline(1, color=_INK, linewidth=1)
    axes.set_xlim(left, right)
    ticks = [tick for tick in _TICKS if left <= tick <= right]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(lines)), [f"1 / {line.label}" if line.more_is_better else line.label for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(axis="x", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_facecolor("none")
    axes.set_xlabel("times the cost of the warmed-up Apache Kafka (= 1), logarithmic: further left is better")
    swatches: list[Artist] = [Patch(color=_OTTLA), Patch(color=_COLD), Line2D([], [], color=_BAR, linewidth=2)]
    names = ["Ottla", "Apache Kafka, cold", "bar: Ottla at most here"]
    axes.legend(swatches, names, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3, frameon=False)
    return figure


def _cost(line: Line, value: float) -> float:
    """A ratio of rates, turned round: the picture shows costs."""
    return 1 / value if line.more_is_better else value


def _bar(axes: Axes, place: float, value: float, colour: str) -> None:
    """A bar from 1 to the value, with the value at its end."""
    axes.barh(place, value - 1, 0.34, left=1, color=colour)
    cheaper = value < 1
    axes.annotate(
        number(value), (value, place), (-4 if cheaper else 4, 0), textcoords="offset points",
        va="center", ha="right" if cheaper else "left", fontsize=9,
    )  # fmt: skip


def _themed(svg: str) -> str:
    """Add a style sheet that replaces the colours where the reader's theme is dark; all others see them as they were drawn."""
    rules = "".join(
        f'[style*="{way}: {light}"]{{{way}:{dark} !important}}' for light, dark in _DARK.items() for way in ("fill", "stroke")
    )
    head, mark, rest = svg.partition("<defs>")
    return f"{head}<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>{mark}{rest}"
