"""Tokens that a resumed stream repeats are passed on once."""

from hypothesis import given
from hypothesis import strategies as st

from chargehand.client.answer import StreamedAnswer
from chargehand.client.types.inference import Token, token_of


def heard(telling: StreamedAnswer, *texts: str) -> list[tuple[str, bool]]:
    told = [telling.add(Token(text)) for text in texts]
    return [(token.text, token.restarted) for token in told if token is not None]


def test_a_repeated_token_is_not_passed_on_again() -> None:
    telling = StreamedAnswer()
    assert heard(telling, "a", "b") == [("a", False), ("b", False)]
    telling.restart()
    assert heard(telling, "a", "b", "c") == [("c", False)]


def test_another_answer_replaces_the_first_from_its_beginning() -> None:
    telling = StreamedAnswer()
    heard(telling, "a", "b", "c")
    telling.restart()
    assert heard(telling, "a", "x", "y") == [("ax", True), ("y", False)]


def test_thinking_is_compared_as_text_is() -> None:
    telling = StreamedAnswer()
    assert telling.add(Token("", "hm")) == Token("", "hm")
    telling.restart()
    assert telling.add(Token("", "ah")) == Token("", "ah", restarted=True)


def test_the_answer_of_the_job_completes_or_replaces_the_tokens() -> None:
    telling = StreamedAnswer()
    heard(telling, "a", "b")
    assert telling.complete(Token("ab")) is None
    assert telling.complete(Token("abc")) == Token("c")
    assert telling.complete(Token("a")) == Token("a", restarted=True)
    assert StreamedAnswer().complete(Token("all of it", "why")) == Token("all of it", "why")


words = st.lists(st.sampled_from(["a", "b", "ab", ""]), max_size=6)


@given(st.lists(words, max_size=5), words)
def test_the_tokens_add_up_to_the_answer(attempts: list[list[str]], last: list[str]) -> None:
    telling, text = StreamedAnswer(), ""

    def put(token: Token | None) -> None:
        nonlocal text
        if token is not None:
            text = token.text if token.restarted else text + token.text

    for attempt in [*attempts, last]:
        telling.restart()
        for word in attempt:
            put(telling.add(Token(word)))
    put(telling.complete(Token("".join(last))))
    assert text == "".join(last)


def test_both_shapes_of_an_answer_are_read_and_others_are_empty() -> None:
    assert token_of({"message": {"content": "x", "thinking": "y"}}) == Token("x", "y")
    assert token_of({"response": "x"}) == Token("x")
    assert token_of({"choices": []}) == token_of([]) == token_of(None) == Token()
