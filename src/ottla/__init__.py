"""Ottla: Apache Kafka's system in Python. A broker that every Kafka client talks to, from pip."""

__version__ = "0.1.0"
