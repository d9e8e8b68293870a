"""The frame of `ottla`: help by what a person wants, the nearest command for a typo, completion, and the forms of output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from ottla.cli import COMMANDS, main, output
from ottla.cli.output import Column, print_rows, progress
from ottla.model import TopicPartition
from ottla.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("known", partitions=2)
        yield running


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False, env=environment, prog_name="ottla")


def test_help_groups_commands_by_what_a_person_wants() -> None:
    shown = invoke("--help").output
    at = 0
    for title, commands in COMMANDS.items():
        for words in (f"\n{title}:\n", *(f"  {name} " for name in commands)):
            assert shown.find(words, at) > at, words
            at = shown.find(words, at)


@pytest.mark.parametrize("arguments", [[], ["cluster"], ["pipeline"]])
def test_whoever_says_nothing_gets_the_help(arguments: list[str]) -> None:
    told = invoke(*arguments)
    assert (told.stdout or told.stderr).strip() == invoke(*arguments, "--help").stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topcis"], "No such command 'topcis'. Did you mean 'topics'?"),
        (["reassign"], "No such command 'reassign'. Did you mean 'reassign-partitions'?"),
        (["kafka-topics.sh"], "No such command 'kafka-topics.sh'. Did you mean 'topics'?"),
        (["xyzzy"], "No such command 'xyzzy' (see ottla --help)"),
        (["--nope"], "No such option '--nope'"),
        (["topics", "--lst"], "No such option '--lst'. Did you mean '--list'?"),
        (["cluster", "cluster-di"], "No such command 'cluster-di'"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["completion"], "bash, zsh, fish"),
    ],
)
def test_a_slip_is_told_in_one_line(arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words.split(" Did", maxsplit=1)[0] in result.stderr
    assert words.rsplit("Did you mean ", maxsplit=1)[-1].strip("?") in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell: str) -> None:
    printed = invoke("completion", shell)
    assert printed.exit_code == 0
    assert f"_OTTLA_COMPLETE={shell}_complete" in printed.stdout


@pytest.mark.parametrize(
    ("typed", "at", "expected"),
    [
        ("ottla top", 1, {"plain,topics"}),
        ("ottla console", 1, {"plain,console", "plain,console-producer", "plain,console-consumer"}),
        ("ottla topics --under-", 2, {"plain,--under-replicated-partitions", "plain,--under-min-isr-partitions"}),
        ("ottla completion z", 2, {"plain,zsh"}),
    ],
)
def test_a_shell_is_told_what_fits(typed: str, at: int, expected: set[str]) -> None:
    asked = invoke(_OTTLA_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=str(at))
    assert set(asked.stdout.split()) == expected


def test_what_commands_do_not_load(broker: Broker) -> None:
    """A list of topics is there in a moment: nothing heavy is loaded for it."""
    program = (
        "import sys; from ottla.cli import main; "
        f"main(['topics', '--list', '--bootstrap-server', '{broker.bootstrap_servers}'], standalone_mode=False); "
        "heavy = {'asyncio', 'pyarrow', 'rich', 'ottla.broker', 'ottla.config'} & set(sys.modules); sys.exit(heavy or None)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "known\n"), f"loaded: {result.stderr}"


# What is printed

_COLUMNS = (Column("Topic", "topic"), Column("N", "n"), Column("Where", "where"))
_ROWS = [("[red]x\x1b[31m", 1, [TopicPartition("a", 0)]), ("é", None, [3, 4])]


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    print_rows(_COLUMNS, _ROWS, lines=["not this"])
    shown = capsys.readouterr().out
    assert "not this" not in shown
    assert "Topic" in shown
    assert "[red]x\\x1b[31m" in shown  # neither markup nor terminal codes
    assert "a-0" in shown
    assert "3,4" in shown


def test_lines_elsewhere_and_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(_COLUMNS, _ROWS, lines=["a", "b"])
    assert capsys.readouterr().out == "a\nb\n"
    print_rows(_COLUMNS, _ROWS, as_json=True)
    assert '"where": [\n      3,\n      4\n    ]' in capsys.readouterr().out


@pytest.mark.parametrize("looks", [True, False])
def test_a_bar_only_where_somebody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], looks: bool
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: looks)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("moving", 2) as tell:
        tell(1)
        tell(2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("moving" in captured.err) == looks


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topics", "--describe"], "Partition"),
        (["configs", "--describe", "--topic", "known", "--all"], "DEFAULT_CONFIG"),
        (["get-offsets"], "Offset"),
        (["log-dirs", "--describe"], "Directory"),
        (["broker-api-versions"], "Usable"),
        (["transactions", "list"], "TransactionalId"),
    ],
)
def test_commands_on_a_terminal(monkeypatch: pytest.MonkeyPatch, broker: Broker, arguments: list[str], words: str) -> None:
    # This one first: a module that is imported now must find the real function, or it would keep the other for good.
    monkeypatch.setattr("ottla.cli.log_dirs.on_terminal", lambda: True)
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    first, *rest = arguments
    result = invoke(first, "--bootstrap-server", broker.bootstrap_servers, *rest, COLUMNS="160")
    assert result.exit_code == 0, result.stderr
    assert words in result.stdout
