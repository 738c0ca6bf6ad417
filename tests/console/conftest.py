"""The server, the client and the receiver of the API's tests."""

from tests.api.conftest import api, receiver, server, settings

__all__ = ["api", "receiver", "server", "settings"]
