"""The pictures of docs/pipelines.md: every example is run with its own data on a broker of its own, and what came out is drawn.

    .venv/bin/python scripts/pictures.py [EXAMPLE ...]

Needs what the examples need (Java 17), and matplotlib. One Spark for all of them; nothing but the pictures stays.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from click.testing import CliRunner
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, DayLocator
from matplotlib.figure import Figure
from PIL import Image

from ottla import client
from ottla.cli import main as ottla
from ottla.pipelines import state as states
from ottla.pipelines.files import load
from ottla.pipelines.running import Running
from ottla.pipelines.session import missing, open_session
from ottla.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
INK, GROUND, FAINT = "#1f2329", "#fdfdfe", "#c9ced6"
COLOURS = ("#2a78d1", "#e0a458", "#3f9b72", "#c2334d", "#7d5ba6")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT,
    "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": FAINT, "grid.linewidth": 0.5, "figure.facecolor": GROUND, "axes.facecolor": GROUND,
    "legend.frameon": False, "lines.markeredgewidth": 2,
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titlepad": 12,
}  # fmt: skip


class Results:
    """Runs an example, and gives what it wrote."""

    def __init__(self, spark: SparkSession, broker: Broker, place: Path) -> None:
        self._spark, self._broker, self._place = spark, broker, place
        self.out = place / "out"
        os.environ["OUT"] = str(self.out)
        os.environ["BOOTSTRAP"] = broker.bootstrap_servers

    def run(self, name: str, times: int = 1) -> dict[str, Any]:
        """The names of the example's generator, when data were made and the pipeline has run."""
        made = runpy.run_path(str(ROOT / "examples" / name / "generate.py"))
        if name == "offline_backfill":
            made["generate"](str(self.out / "broker"))
            line = ["export", "readings", "--to", "parquet", str(self.out / "stored"), "--log-dirs", str(self.out / "broker")]
            CliRunner().invoke(ottla, line, catch_exceptions=False)
        else:
            made["generate"](self._broker.bootstrap_servers)
        for _ in range(times):
            pipeline = load(str(ROOT / "examples" / name), {})
            running = Running(pipeline, self._place / name, states.new_state(name, name), once=True)
            running.ask_cluster()
            running.build(self._spark)
            running.start()
            running.watch(lambda _: None)
            running.close()
        return made

    def topic(self, name: str) -> list[tuple[str, Any]]:
        """Keys and values, read_committed, of all partitions in their order."""
        cluster = self._broker.bootstrap_servers
        table = client.read(name, cluster=cluster, isolation="read_committed", columns=["key", "value"]).table()
        return [((row["key"] or b"").decode(), row["value"]) for row in table.to_pylist()]

    def objects(self, name: str) -> list[dict[str, Any]]:
        """Values that are JSON; of each key the last one."""
        return [json.loads(value) for value in dict(self.topic(name)).values()]

    def table(self, name: str, sql: str) -> list[Any]:
        """What SQL says of Parquet files; `here` stands for their place."""
        return self._spark.sql(sql.replace("here", f"parquet.`{self.out / name}`")).collect()


# ---- one function for each example ---------------------------------------------------------------------------------------


def activity_tracking(results: Results) -> Figure:
    made = results.run("activity_tracking")
    found = [json.loads(value) for _, value in results.topic("page-views")]
    views = {(one["page"], one["minute"][11:16]): one["views"] for one in found}
    minutes = sorted({minute for _, minute in views})
    figure, axes = _sheet(7.5, 3.4)
    ground = [0] * len(minutes)
    for page, colour in zip(made["PAGES"], COLOURS, strict=False):
        heights = [views.get((page, minute), 0) for minute in minutes]
        axes.bar(minutes, heights, 0.7, bottom=ground, color=colour, label=page)
        ground = [below + height for below, height in zip(ground, heights, strict=True)]
    bad = len(results.topic("clicks-bad"))
    axes.set(
        xlabel="minute", ylabel="views", title=f"page-views: {sum(ground):,} clicks by page and minute, {bad} in clicks-bad"
    )
    axes.grid(axis="x", visible=False)
    _legend(axes, "page")
    return figure


def metrics_rollup(results: Results) -> Figure:
    results.run("metrics_rollup")
    found = results.objects("load-by-minute")
    figure, axes = _sheet(7.5, 3.4)
    for host, colour in zip(sorted({one["host"] for one in found}), COLOURS, strict=False):
        some = sorted((one for one in found if one["host"] == host), key=lambda one: one["minute"])
        minutes = [one["minute"][11:16] for one in some]
        axes.plot(minutes, [one["mean"] for one in some], color=colour, label=f"{host}, mean", linewidth=2)
        axes.plot(
            minutes,
            [one["peak"] for one in some],
            color=colour,
            label="its peak",
            linewidth=0,
            marker="_",
            markersize=10,
            mew=2,
        )
    axes.set(xlabel="minute", ylabel="CPU load", ylim=(0, 1), title="load-by-minute: the last word on each machine and minute")
    axes.set_xticks(axes.get_xticks()[::2])
    _legend(axes, None)
    return figure


def log_aggregation(results: Results) -> Figure:
    results.run("log_aggregation")
    found = {(row.service, row.level): row.lines for row in results.table("logs", _LOGS)}
    services = sorted({service for service, _ in found})
    figure, axes = _sheet(7.5, 2.6)
    left = [0] * len(services)
    for level, colour in (("INFO", COLOURS[0]), ("WARN", COLOURS[1]), ("ERROR", COLOURS[3])):
        widths = [found.get((service, level), 0) for service in services]
        bars = axes.barh(services, widths, 0.6, left=left, color=colour, label=level)
        axes.bar_label(bars, label_type="center", color=INK if level == "WARN" else GROUND, fontsize=9)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set(xlabel="lines", title=f"out/logs: {sum(left)} lines of {len(services)} services, a directory per level")
    axes.grid(axis="y", visible=False)
    _legend(axes, "level")
    return figure


_LOGS = "SELECT service, level, count(*) AS lines FROM here GROUP BY ALL"


def stream_processing(results: Results) -> Figure:
    results.run("stream_processing", times=2)
    found = sorted(results.objects("totals-by-country"), key=lambda one: -one["amount"])
    enriched = len(results.topic("orders-enriched"))
    figure, axes = _sheet(7.5, 2.6)
    bars = axes.barh([one["country"] for one in found], [one["amount"] for one in found], 0.6, color=COLOURS[0])
    axes.bar_label(bars, [f"{one['amount']:,.2f} in {one['orders']} orders" for one in found], padding=5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * found[0]["amount"])
    axes.set(xlabel="amount", ylabel="country", title=f"totals-by-country: {enriched} records of orders-enriched, added up")
    axes.grid(visible=False)
    return figure


def event_sourcing(results: Results) -> Figure:
    made = results.run("event_sourcing")
    found = sorted(results.objects("balances"), key=lambda one: one["account"])
    figure, axes = _sheet(7.5, 3.4)
    history: dict[str, list[int]] = {one["account"]: [0] for one in found}
    for event in made["events"]():
        change = event["amount"] if event["kind"] == "deposited" else -event["amount"]
        history[event["account"]].append(history[event["account"]][-1] + change)
    for one, colour in zip(found, COLOURS, strict=False):
        steps = history[one["account"]]
        axes.step(range(len(steps)), steps, where="post", color=colour, linewidth=1.2)
        axes.plot(one["events"], one["balance"], "o", color=colour, label=f"{one['account']}: {one['balance']}")
    axes.set(xlabel="events of the account", ylabel="balance", xlim=(0, max(map(len, history.values())) + 0.5))
    axes.set_title("account-events (lines), and what the topic balances says in the end (dots)")
    _legend(axes, "balances")
    return figure


def commit_log(results: Results) -> Figure:
    made = results.run("commit_log")
    sql = (ROOT / "examples" / "commit_log" / "README.md").read_text().split("```sql\n")[1].split("```")[0]
    rows = results.table("customers", sql.replace("parquet.`out/customers`", "here"))
    table = sorted(([row.id, row.last.name, row.last.city] for row in rows), key=lambda one: int(one[0][1:]))
    changes = [[key, *(("(deleted)", "") if one is None else (one["name"], one["city"]))] for key, one in made["changes"]()]
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    sides: list[Axes] = list(figure.subplots(1, 2))
    many = len(table)
    _draw_table(sides[0], f"customers-log: the last {many} of {len(changes)} changes", changes[-many:])
    _draw_table(sides[1], f"out/customers: the {many} that are left", table)
    return figure


def offline_backfill(results: Results) -> Figure:
    results.run("offline_backfill")
    rows = results.table("readings", "SELECT sensor, date_trunc('hour', at) AS hour, avg(value) AS mean, count(*) AS count"
                                     " FROM here GROUP BY ALL ORDER BY hour")  # fmt: skip
    days = results.table("readings", "SELECT day, count(*) AS count FROM here GROUP BY ALL ORDER BY day")
    lost = results.table("unreadable", "SELECT count(*) AS count FROM here")[0]["count"]
    figure, axes = _sheet(7.5, 3.4)
    for sensor, colour in zip(sorted({row.sensor for row in rows}), COLOURS, strict=False):
        some = [row for row in rows if row.sensor == sensor]
        axes.plot([row.hour for row in some], [row["mean"] for row in some], color=colour, label=sensor, linewidth=1.6)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.12 * (high - low))
    for row in days:
        noon = datetime.fromisoformat(f"{row.day}T12:00:00")
        axes.text(noon, high + 0.03 * (high - low), f"day={row.day}: {row['count']}", ha="center", fontsize=9)
    axes.xaxis.set_major_locator(DayLocator())
    axes.xaxis.set_major_formatter(DateFormatter("%b %d"))
    records = sum(row["count"] for row in days)
    axes.set(
        ylabel="mean of the hour, °C",
        title=f"out/readings: {records:,} readings of a broker that is gone, {lost} in out/unreadable",
    )
    _legend(axes, "sensor")
    return figure


# ---- drawing -------------------------------------------------------------------------------------------------------------


def _save(figure: Figure, path: Path) -> None:
    """As a PNG with few colours: a page that shows all of them stays light."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110, bbox_inches="tight", pad_inches=0.15)
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def _sheet(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _legend(axes: Axes, title: str | None) -> None:
    """Beside the picture, so that it hides nothing."""
    axes.legend(title=title, loc="center left", bbox_to_anchor=(1.01, 0.5), alignment="left", fontsize=9)


def _draw_table(axes: Axes, title: str, rows: list[list[str]]) -> None:
    axes.axis("off")
    axes.set_title(title)
    drawn = axes.table(
        rows, colLabels=["id", "name", "city"], cellLoc="left", colLoc="left", loc="upper center", bbox=[0, 0, 1, 1]
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(9)
    for (row, _), cell in drawn.get_celld().items():
        cell.set(edgecolor=FAINT, linewidth=0.5, facecolor="#eef1f5" if row == 0 else GROUND)
        cell.set_text_props(weight="bold" if row == 0 else "normal")


EXAMPLES: tuple[Callable[[Results], Figure], ...] = (
    activity_tracking,
    metrics_rollup,
    log_aggregation,
    stream_processing,
    event_sourcing,
    commit_log,
    offline_backfill,
)


def main(wanted: list[str]) -> None:
    why = missing()
    if why is not None:
        sys.exit(why)
    target = ROOT / "docs" / "pipelines"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ottla-pictures-") as place, Broker() as broker, mpl.rc_context(STYLE):
        settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.log.level": "ERROR"}
        spark = open_session("pictures", Path(place), "local[2]", settings)
        results = Results(spark, broker, Path(place))
        for draw in EXAMPLES:
            if not wanted or draw.__name__ in wanted:
                picture = target / f"{draw.__name__}.png"
                _save(draw(results), picture)
                print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} KB")
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
