"""Files in a pipeline's directory that outlive a run."""

from __future__ import annotations

from pathlib import Path


def keep(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)
