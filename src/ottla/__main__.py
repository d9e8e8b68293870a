"""`python -m ottla` does what `ottla` does."""

from ottla.cli import main

main()
