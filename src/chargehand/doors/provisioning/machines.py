"""How the rest of the door gets at a BMC: one client for each conversation, with this server's bounds and policy."""

import asyncio
from random import Random

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.redfish.client import Permit
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.webhooks.egress import EgressPolicy

PATIENCE_SECONDS = 60.0
TURN_SECONDS = 0.002  # between one request's beginning and the next one's, to whichever BMC


class Machines:
    def __init__(
        self,
        settings: ProvisioningConfig,
        policy: EgressPolicy,
        metrics: ProvisioningMetrics,
        random: Random | None = None,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._metrics = metrics
        self._random = random or Random()  # noqa: S311 - for jitter
        self._turns = asyncio.Lock()

    def open(self, bmc: Bmc, budget_seconds: float = 2 * PATIENCE_SECONDS, permit: Permit | None = None) -> Machine:
        """To be used as an async context manager: it logs out at the end.

        One call bears trouble for half of the budget at most, so that what the trouble was is heard before time is up.
        """
        return Machine(
            bmc,
            policy=self._policy,
            timeout_seconds=self._settings.redfish_timeout_seconds,
            observe=self._metrics.observe_redfish,
            random=self._random,
            patience_seconds=min(PATIENCE_SECONDS, budget_seconds / 2),
            permit=permit,
            turn=self._turn,
        )

    async def _turn(self) -> None:
        """A thousand machines that are booted or cleaned up at once would keep the process busy for seconds, and those that report
        would wait for as long. One request begins each moment; when the process is busy a moment is longer.
        """
        async with self._turns:
            await asyncio.sleep(TURN_SECONDS)
