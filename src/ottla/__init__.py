"""Ottla: Apache Kafka's system in Python. A broker that every Kafka client talks to, from pip."""

from ottla import compiled as _compiled  # noqa: F401 - first of all: it decides what the imports after it find

__version__ = "0.1.0"
