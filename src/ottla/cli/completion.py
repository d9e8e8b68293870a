"""`ottla completion SHELL`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ottla.cli.tool import OneLine

_WHERE = {
    "bash": 'eval "$(ottla completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(ottla completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "ottla completion fish | source   in ~/.config/fish/config.fish",
}


@click.command("completion", cls=OneLine, epilog="\b\n" + "\n".join(_WHERE.values()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes `ottla` in a shell. Put one of these lines into its start file:"""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "ottla", "_OTTLA_COMPLETE").source())
