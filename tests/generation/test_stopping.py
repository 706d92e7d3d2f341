"""Stop strings, and guesses of the next tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowmx.generation.prompt_lookup import PromptLookup
from flowmx.generation.stopping import StopStrings

letters = st.text("ab", max_size=6)


@given(st.lists(letters, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(pieces, strings):
    stop, text = StopStrings(strings), ""
    for count, piece in enumerate(pieces, 1):
        text += stop.push(piece)
        whole = "".join(pieces[:count])
        places = [whole.find(each) for each in strings if each in whole]
        assert stop.is_reached == bool(places)
        if places:
            assert text == whole[: min(places)]
            return
        assert whole.startswith(text)
        held = whole[len(text) :]
        assert not held or any(each.startswith(held) for each in strings)
    assert text + stop.flush() == "".join(pieces)


def test_one_string_and_an_empty_one():
    stop = StopStrings("END")
    assert stop.push("the EN") == "the "
    assert stop.push("D of it") == ""
    assert stop.is_reached
    with pytest.raises(ValueError, match="empty string"):
        StopStrings([""])


def test_guesses_follow_the_last_occurrence():
    lookup = PromptLookup(count=3, longest=2)
    assert lookup.drafts([1, 2, 3, 4, 5, 1, 2]) == [3, 4, 5]
    assert lookup.drafts([1, 2, 9, 1, 2, 3, 1, 2]) == [3, 1, 2]
    assert lookup.drafts([7, 1, 8, 1]) == [8, 1]
    assert lookup.drafts([1, 2, 3]) == []
    assert lookup.drafts([]) == []
    with pytest.raises(ValueError, match="expected 1 or more"):
        PromptLookup(0)
