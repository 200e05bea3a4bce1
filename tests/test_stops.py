"""The text of a completion up to its stops, however it is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tttdd.stops import Content, until
from tttdd.thinking import CLOSING

texts = st.text("ab\nc", max_size=30)
stops = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3).map(tuple)


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in pairwise(places)]


@given(text=texts, stops=stops, cuts=st.lists(st.integers(0, 100), max_size=8))
def test_pieces_are_together_what_the_whole_text_is_before_its_first_stop(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    told: list[str] = []
    content = Content(stops, told.append)
    for piece in in_pieces(text, cuts):
        content.add(piece)
    whole = content.finish(text)
    assert "".join(told) == whole == until(text, stops)
    assert not any(stop in whole for stop in stops) and text.startswith(whole)


def test_a_text_is_told_at_once_unless_it_could_be_the_beginning_of_a_stop() -> None:
    told: list[str] = []
    content = Content(("END",), told.append)
    for piece in ("one", " E", "N", "O", " END of"):
        content.add(piece)
    assert told == ["one", " ", "ENO", " "]
    assert content.finish("one ENO END of") == "one ENO "


@given(before=texts, after=texts, stops=stops, cuts=st.lists(st.integers(0, 100), max_size=8))
def test_what_the_sampler_was_forced_to_say_stops_nothing(
    before: str, after: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    told: list[str] = []
    content = Content(stops, told.append)
    thought = until(before, stops)
    for piece in [thought, CLOSING, *in_pieces(after, cuts)]:
        content.add(piece)
    assert content.finish(thought + CLOSING + after) == thought + CLOSING + until(after, stops)
    assert "".join(told) == thought + CLOSING + until(after, stops)
