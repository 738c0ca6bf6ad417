"""Tokens that come more than once, told once.

A server tells the running attempt from its first token on to whoever comes back, and the next attempt begins anew. What was told
already is therefore compared with what comes: as long as both are the same, nothing is told again, whichever attempt it is. When
they differ the attempt is another one, and what is new is told from its beginning, with the word that what came before is void.
"""

from chargehand.client.types.inference import Token


class StreamedAnswer:
    def __init__(self) -> None:
        self._told: list[Token] = []
        self._at = 0  # how much of it was heard again

    def begin(self) -> None:
        """What comes now comes from its first token on."""
        self._at = 0

    def hear(self, token: Token) -> Token | None:
        """What the caller has to be told because of it."""
        if not token.text and not token.thinking:
            return None
        self._at += 1
        if self._at > len(self._told):
            self._told.append(token)
            return token
        if self._told[self._at - 1] == token:
            return None
        self._told = [*self._told[: self._at - 1], token]
        return _together(self._told, restarted=True)

    def settle(self, whole: Token) -> Token | None:
        """The answer as it was kept, for whoever was not there for all of it: what is missing, or all of it."""
        known = _together(self._told)
        if whole.text.startswith(known.text) and whole.thinking.startswith(known.thinking):
            rest = Token(whole.text[len(known.text) :], whole.thinking[len(known.thinking) :])
            return rest if rest.text or rest.thinking else None
        return Token(whole.text, whole.thinking, restarted=True)


def _together(tokens: list[Token], restarted: bool = False) -> Token:
    return Token("".join(each.text for each in tokens), "".join(each.thinking for each in tokens), restarted)
