"""`ottla`, and `python -m ottla`, which does the same."""

from __future__ import annotations

import sys

from ottla import __version__


def main() -> None:
    """Run the command; whoever asks for the version alone does not wait for the rest to load."""
    if sys.argv[1:] == ["--version"]:
        print(f"ottla, version {__version__}")
        return
    from ottla.cli import main as commands  # noqa: PLC0415 - see above

    commands()


if __name__ == "__main__":
    main()
