"""Patterns of topic names, as consumers may send them (ConsumerGroupHeartbeat from version 1 on), matched by the broker.

Guards the loop against its clients: the engines of most languages can be sent into exponential time by a short pattern. This
one takes the common ground of regular expressions (literals, `.`, classes, groups, `|`, `* + ? {m,n}`, `^ $`, `\\d \\w \\s`),
turns them into a nondeterministic automaton of bounded size and runs that deterministically, one table look-up per character.
A name must match as a whole. What needs memory of what was matched (back references, looking around) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from ottla.model import Error, KafkaError

MAX_LENGTH = 1000
MAX_STATES = 2000
MAX_NESTING = 50
_MAX_SETS = 1000
_MAX_REPEAT = 1000

_Test = Callable[[str], bool]
_DIGITS = frozenset("0123456789")
_WORD = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE = frozenset(" \t\n\r\f\v")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_BEGIN = "begin"
_END = "end"


class Pattern:
    """One pattern, ready to be matched."""

    __slots__ = ("_accept", "_empty", "_next", "_sets", "_start", "_tests")

    def __init__(self, text: str) -> None:
        automaton = _Parser(text).automaton
        self._tests = automaton.tests
        self._next = automaton.next
        self._empty = automaton.empty
        self._accept = automaton.accept
        self._sets: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._start = automaton.start

    @staticmethod
    @lru_cache(maxsize=256)
    def of(text: str) -> Pattern:
        """The pattern that a client wrote; raises INVALID_REQUEST where it cannot be understood."""
        return Pattern(text)

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        states = self._closure([self._start], at_begin=True, at_end=not name)
        for char in name:
            states = self._step(states, char)
            if not states:
                return False
        return self._accept in self._closure(states, at_end=True)

    def _step(self, states: frozenset[int], char: str) -> frozenset[int]:
        known = self._sets.get(states)
        if known is None:
            if len(self._sets) >= _MAX_SETS:
                self._sets.clear()
            known = self._sets[states] = {}
        after = known.get(char)
        if after is None:
            reached = [self._next[state] for state in states if (test := self._tests.get(state)) is not None and test(char)]
            after = known[char] = self._closure(reached)
        return after

    def _closure(self, states: Iterable[int], *, at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """Everything that can be reached without reading a character."""
        reached = set(states)
        todo = list(reached)
        while todo:
            for condition, state in self._empty.get(todo.pop(), ()):
                passes = condition is None or (at_begin if condition == _BEGIN else at_end)
                if passes and state not in reached:
                    reached.add(state)
                    todo.append(state)
        return frozenset(reached)


class _Automaton:
    """States are numbers. A state either reads a character (`tests`, `next`) or goes on without (`empty`)."""

    __slots__ = ("accept", "empty", "next", "start", "tests")

    def __init__(self) -> None:
        self.tests: dict[int, _Test] = {}
        self.next: dict[int, int] = {}
        self.empty: dict[int, list[tuple[str | None, int]]] = {}
        self.start = self.accept = 0


_Piece = Callable[[int], int]
"""A part of the pattern: given the state that follows it, builds itself and returns the state that it begins with."""


class _Parser:
    """Reads a pattern from left to right; pieces are built from right to left."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise _refusal(text[:40], f"it is longer than {MAX_LENGTH} characters")
        self._text = text
        self._at = 0
        self._count = 0
        self._depth = 0
        self.automaton = _Automaton()
        piece = self._alternatives()
        if self._at < len(text):
            raise self._wrong("there is a ) without a (")
        self.automaton.accept = self._state()
        self.automaton.start = piece(self.automaton.accept)

    def _wrong(self, why: str) -> KafkaError:
        return _refusal(self._text, why)

    def _state(self) -> int:
        self._count += 1
        if self._count > MAX_STATES:
            raise self._wrong("it is too large")
        return self._count

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _char(self) -> str:
        if self._at == len(self._text):
            raise self._wrong("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    # What a pattern is made of

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._wrong("its groups are nested too deeply")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else lambda follow: self._fork(branch(follow) for branch in branches)

    def _fork(self, ways: Iterable[int]) -> int:
        state = self._state()
        self.automaton.empty[state] = [(None, way) for way in ways]
        return state

    def _sequence(self) -> _Piece:
        pieces: list[_Piece] = []
        while self._peek() not in ("", "|", ")"):
            pieces.append(self._repeated(self._atom()))

        def build(follow: int) -> int:
            for piece in reversed(pieces):
                follow = piece(follow)
            return follow

        return build

    def _atom(self) -> _Piece:
        char = self._char()
        if char == "(":
            return self._group()
        if char == "[":
            return self._reads(self._set())
        if char == ".":
            return self._reads(lambda read: read != "\n")
        if char in "^$":
            return self._anchor(_BEGIN if char == "^" else _END)
        if char in "*+?":
            raise self._wrong(f"there is nothing for {char} to repeat")
        if char == "\\":
            return self._escape()
        return self._reads(char.__eq__)

    def _group(self) -> _Piece:
        if self._take("?") and not self._take(":"):
            raise self._wrong("of the groups that begin with (? only (?: is supported")
        piece = self._alternatives()
        if not self._take(")"):
            raise self._wrong("there is a ( without a )")
        return piece

    def _reads(self, test: _Test) -> _Piece:
        def build(follow: int) -> int:
            state = self._state()
            self.automaton.tests[state] = test
            self.automaton.next[state] = follow
            return state

        return build

    def _anchor(self, condition: str) -> _Piece:
        def build(follow: int) -> int:
            state = self._state()
            self.automaton.empty[state] = [(condition, follow)]
            return state

        return build

    def _escape(self) -> _Piece:
        char = self._char()
        if char in "Az":
            return self._anchor(_BEGIN if char == "A" else _END)
        return self._reads(self._escaped(char))

    def _escaped(self, char: str) -> _Test:
        if char.lower() in _CLASSES:
            members = _CLASSES[char.lower()]
            return members.__contains__ if char.islower() else lambda read: read not in members
        if char in _CONTROLS:
            return _CONTROLS[char].__eq__
        if char.isalnum():
            raise self._wrong(f"\\{char} is not supported")
        return char.__eq__

    def _set(self) -> _Test:
        inverted = self._take("^")
        chars: set[str] = set()
        tests: list[_Test] = []
        first = True
        while first or self._peek() != "]":
            first = False
            char = self._char()
            if char == "[" and self._peek() == ":":
                raise self._wrong("classes like [:alpha:] are not supported")
            if char == "\\":
                char = self._char()
                if char.isalnum():
                    tests.append(self._escaped(char))
                    continue
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                tests.append(self._range(char, self._char()))
            else:
                chars.add(char)
        self._at += 1
        test: _Test = lambda read: read in chars or any(one(read) for one in tests)  # noqa: E731 - two closures, one shape
        return (lambda read: not test(read)) if inverted else test

    def _range(self, low: str, high: str) -> _Test:
        if high == "\\":
            high = self._char()
        if high < low:
            raise self._wrong(f"{low}-{high} is no range")
        return lambda read: low <= read <= high

    # Repetition

    def _repeated(self, piece: _Piece) -> _Piece:
        while (bounds := self._bounds()) is not None:
            piece = self._times(piece, *bounds)
        return piece

    def _bounds(self) -> tuple[int, int | None] | None:
        """How often what was read last may come, None where nothing is said. For a whole match greed makes no difference."""
        if self._take("*"):
            bounds: tuple[int, int | None] = (0, None)
        elif self._take("+"):
            bounds = (1, None)
        elif self._take("?"):
            bounds = (0, 1)
        elif self._take("{"):
            bounds = self._counted()
        else:
            return None
        self._take("?")
        return bounds

    def _counted(self) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        if self._take(","):
            high = None if self._peek() == "}" else self._number()
        if not self._take("}") or (high is not None and high < low):
            raise self._wrong("a { must be followed by {m}, {m,} or {m,n}")
        return low, high

    def _number(self) -> int:
        begin = self._at
        while self._peek() in _DIGITS:
            self._at += 1
        digits = self._text[begin : self._at]
        if not digits or int(digits) > _MAX_REPEAT:
            raise self._wrong(f"a count must be from 0 to {_MAX_REPEAT}")
        return int(digits)

    def _times(self, piece: _Piece, low: int, high: int | None) -> _Piece:
        def build(follow: int) -> int:
            begin = follow
            if high is None:
                begin = self._state()
                self.automaton.empty[begin] = [(None, follow), (None, piece(begin))]
            else:
                for _ in range(high - low):
                    begin = self._fork((follow, piece(begin)))
            for _ in range(low):
                begin = piece(begin)
            return begin

        return build


def _refusal(pattern: str, why: str) -> KafkaError:
    return KafkaError(Error.INVALID_REQUEST, f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {why}.")
