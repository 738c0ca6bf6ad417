"""All checks, in the order in which to fix what they find."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chargehand.commands.doctor import settings
from chargehand.commands.doctor.finding import Finding, failed, ok
from chargehand.commands.doctor.network import network
from chargehand.commands.doctor.privacy import files
from chargehand.commands.doctor.storage import disks, store
from chargehand.config import load_config
from chargehand.errors import ConfigError

ORDER = ("config", "access", "certificate", "store", "schema", "disk", "files", "secrets", "server", "chores", "clock")


async def examine(file: Path | None, overrides: Mapping[str, Any], url: str, token: str) -> list[Finding]:
    try:
        config = load_config(file, overrides=overrides)
    except ConfigError as error:
        return [
            failed("config", error.message, "docs/reference/settings.md has every setting; nothing else was checked")
        ]
    stored, called = await asyncio.gather(store(config), network(config, url, token))
    findings = [
        ok("config", f"{file} is valid" if file else "the defaults and the environment are valid"),
        settings.access(config),
        settings.certificate(config),
        *stored,
        *disks(config),
        *files(config, file),
        *called,
        *settings.egress(config),
        settings.embedded_model(config),
        *settings.maintenance_image(config),
    ]
    found = [each for each in findings if each is not None]
    if any(each.check == "clock" and each.state != "ok" for each in found):
        found = [each for each in found if each.check != "clock" or each.state != "ok"]
    return sorted(found, key=lambda each: ORDER.index(each.check) if each.check in ORDER else len(ORDER))
