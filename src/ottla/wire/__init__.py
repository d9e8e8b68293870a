"""Bytes to messages and back: Kafka's protocol, without I/O.

`schema` is the vocabulary of the tables in `apis`, `decoder` and `encoder` compile them, `frame` puts headers on.
"""
