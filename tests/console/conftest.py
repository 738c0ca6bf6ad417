"""The server, the client and the receiver that the tests of the API have."""

from tests.api.conftest import api, receiver, server, settings

__all__ = ["api", "receiver", "server", "settings"]
