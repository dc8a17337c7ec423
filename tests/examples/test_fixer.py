"""The fixer: what it calls tidy, and that it works on a copy, also when it is killed half-way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.fixer import tidy


@pytest.mark.parametrize(
    ("untidy", "expected"),
    [
        (b"", b""),
        (b"   \n\t\n", b""),
        (b"a", b"a\n"),
        (b"a  \nb\t\n\n\n", b"a\nb\n"),
        (b"  a\n\n  b\n", b"  a\n\n  b\n"),
        (b"a \r\nb", b"a\r\nb\r\n"),
        (b"a\x0c \n", b"a\x0c\n"),
    ],
)
def test_line_ends_are_bare_and_the_last_line_ends_once(untidy: bytes, expected: bytes) -> None:
    assert tidy(untidy) == expected


@given(st.lists(st.sampled_from([b"a", b" ", b"\t", b"\n", b"\r", b"\r\n"])).map(b"".join))
def test_a_tidy_file_stays_as_it_is(text: bytes) -> None:
    assert tidy(tidy(text)) == tidy(text)


@given(st.text(alphabet="ab \t\n").map(str.encode))
def test_only_white_space_goes_away(text: bytes) -> None:
    assert b"".join(tidy(text).split()) == b"".join(text.split())
