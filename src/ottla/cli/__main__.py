"""`python -m ottla.cli` does what `ottla` does."""

from ottla.cli import main

main()
