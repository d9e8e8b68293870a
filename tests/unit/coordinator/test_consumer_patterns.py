"""Patterns of topic names: the same answers as Python's own engine gives, in linear time, and words for what is refused."""

import random
import re

import pytest

from ottla.coordinator.topic_patterns import Pattern
from ottla.model import Error, KafkaError

PATTERNS = [
    "orders.*",
    "^a(b|c)*d$",
    "[a-c]{2,3}x?",
    "(?:ab)+|c{2}",
    r"\d+-\w*",
    r"\D\W?\S",
    "[^a-b]+",
    "a.c",
    "",
    "a||b",
    "(a*)*b",
    "[]a]+",
    r"[a\-z]+",
    r"[\d_]+x",
    "^$",
    "(^a|b)c",
    "a{0}b",
    "x{2,}",
    "(ab?){1,2}?c",
    "a$b",
    r"a\.b|\[",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_same_as_python(pattern):
    rng = random.Random(pattern)
    ours, theirs = Pattern(pattern), re.compile(pattern)
    for _ in range(400):
        name = "".join(rng.choice("abcdx-_12].[") for _ in range(rng.randrange(6)))
        assert ours.matches(name) == bool(theirs.fullmatch(name)), name


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", "a)", "[a", "*a", "a{2", "a{,2}", "a{5,2}", "a{9999}", "\\", "a|*"),
        *("(?=a)", "(?i)a", r"(a)\1", r"\bword", "[[:alpha:]]"),
        "((((a{90}){90}){90}){90})",
        "(" * 60 + ")" * 60,
        "a" * 1001,
    ],
)
def test_what_is_refused(pattern):
    with pytest.raises(KafkaError) as refused:
        Pattern.of(pattern)
    assert refused.value.error is Error.INVALID_REQUEST
    assert "is not a valid regular expression" in refused.value.message


def test_a_pattern_that_sends_others_into_exponential_time():
    assert not Pattern("(a*)*(a|a)*(a?){100}b").matches("a" * 249)


def test_many_sets_of_states():
    pattern = Pattern("(a|b)*a(a|b){12}")  # its deterministic form has thousands of states: they are not all kept
    rng = random.Random(1)
    for _ in range(300):
        name = "".join(rng.choice("ab") for _ in range(40))
        assert pattern.matches(name) == (name[-13] == "a")
