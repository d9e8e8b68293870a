"""What the record format says when bytes are not what they claim to be.

Two voices, as in Kafka: CORRUPT_MESSAGE when the bytes themselves are broken (a checksum, a length, a compressed stream),
so a client may send them again; INVALID_RECORD when they arrived whole but say something that no log may hold, so sending
again cannot help.
"""

from __future__ import annotations

from ottla.model import Error, KafkaError


class CorruptRecords(KafkaError):
    """Bytes that are not a batch, a message set or a compressed stream."""

    def __init__(self, message: str, error: Error = Error.CORRUPT_MESSAGE) -> None:
        super().__init__(error, message)


class InvalidRecords(CorruptRecords):
    """A batch that is whole, but whose records contradict its header or the format."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Error.INVALID_RECORD)


class BadPiece(ValueError):
    """Records that cannot be turned into columns: which of the pieces holds them, and what is wrong with it."""

    def __init__(self, piece: int, message: str) -> None:
        super().__init__(message)
        self.piece = piece
