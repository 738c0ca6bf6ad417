"""BMCs that fail at a single action, for which there is no habit."""

from typing import Any

from aiohttp import web

from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_state import System, error


class SecondDriveJams(FakeBmc):
    async def _insert(self, system: System, name: str, body: dict[str, Any]) -> web.Response:
        if name == "Cd2":
            return web.json_response(error("GeneralError", "The second drive is jammed."), status=400)
        return await super()._insert(system, name, body)


class KeepsItsMedia(FakeBmc):
    def _eject(self, system: System, name: str, raw: bytes) -> web.Response:
        return web.json_response(error("ResourceInUse", "A console holds the drive."), status=409)


class ResetsOnce(FakeBmc):
    async def _reset(self, system: System, body: dict[str, Any]) -> web.Response:
        if self.count("reset"):
            return web.json_response(error("OperationNotAllowed", "Not a second time."), status=400)
        return await super()._reset(system, body)
