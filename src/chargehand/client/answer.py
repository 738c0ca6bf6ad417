"""The answer of a model, put together from tokens that may arrive more than once.

A server repeats the running attempt from its first token on for whoever reconnects, and another attempt begins from the start. So tokens are
compared with those before: as long as they are the same, nothing is passed on again, whichever attempt it is. At the first difference
the whole new answer is passed on as one token with `restarted`, which replaces all tokens before it.
"""

from chargehand.client.types.inference import Token


class StreamedAnswer:
    def __init__(self) -> None:
        self._tokens: list[Token] = []
        self._repeated = 0  # how many of them have come again

    def restart(self) -> None:
        """The next token is the first of an attempt."""
        self._repeated = 0

    def add(self, token: Token) -> Token | None:
        """What to pass on to the caller because of this token."""
        if not token.text and not token.thinking:
            return None
        self._repeated += 1
        if self._repeated > len(self._tokens):
            self._tokens.append(token)
            return token
        if self._tokens[self._repeated - 1] == token:
            return None
        self._tokens = [*self._tokens[: self._repeated - 1], token]
        return _joined(self._tokens, restarted=True)

    def complete(self, whole: Token) -> Token | None:
        """What is missing from the answer that the job has in the end, or all of it if the tokens differ."""
        known = _joined(self._tokens)
        if whole.text.startswith(known.text) and whole.thinking.startswith(known.thinking):
            rest = Token(whole.text[len(known.text) :], whole.thinking[len(known.thinking) :])
            return rest if rest.text or rest.thinking else None
        return Token(whole.text, whole.thinking, restarted=True)


def _joined(tokens: list[Token], restarted: bool = False) -> Token:
    return Token("".join(each.text for each in tokens), "".join(each.thinking for each in tokens), restarted)
