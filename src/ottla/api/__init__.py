"""Request handlers, one module per family. Importing this package declares them all."""

from ottla.api import configs, fetch, group_offsets, groups, log_dirs, metadata, offsets, produce, topics, versions

__all__ = ["configs", "fetch", "group_offsets", "groups", "log_dirs", "metadata", "offsets", "produce", "topics", "versions"]
