"""Opens BMCs for the rest of the door: one client for each conversation, with this server's limits and policy."""

from random import Random

from chargehand.config import ProvisioningConfig
from chargehand.doors.provisioning.metrics import ProvisioningMetrics
from chargehand.doors.provisioning.redfish.client import Permit
from chargehand.doors.provisioning.redfish.facts import Bmc
from chargehand.doors.provisioning.redfish.machine import Machine
from chargehand.doors.provisioning.redfish.turns import Turns
from chargehand.webhooks.egress import EgressPolicy

PATIENCE_SECONDS = 60.0


class Machines:
    def __init__(
        self,
        settings: ProvisioningConfig,
        policy: EgressPolicy,
        metrics: ProvisioningMetrics,
        turns: Turns,
        random: Random | None = None,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._metrics = metrics
        self._random = random or Random()  # noqa: S311 - for jitter
        self._turns = turns

    def open(self, bmc: Bmc, budget_seconds: float = 2 * PATIENCE_SECONDS, permit: Permit | None = None) -> Machine:
        """Return a client to use in `async with`, which logs out at the end.

        One call retries for half of the budget at most, so that its error is known before the budget is used up.
        """
        return Machine(
            bmc,
            policy=self._policy,
            timeout_seconds=self._settings.redfish_timeout_seconds,
            observe=self._metrics.observe_redfish,
            random=self._random,
            patience_seconds=min(PATIENCE_SECONDS, budget_seconds / 2),
            permit=permit,
            turn=self._turns.wait,
        )
