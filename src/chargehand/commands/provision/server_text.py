"""Servers and the reports of their BMCs, as text."""

import re
from collections.abc import Sequence

from chargehand.client.types.provisioning import BmcFacts, DriveSlot, ProbeReport, RegisteredServer
from chargehand.commands.provision.refusals import in_our_words
from chargehand.commands.text import clean, columns, day

NO_CONNECTION = "no connection"
WRONG_PASSWORD = "refused: wrong user or password"  # noqa: S105 - no password
NOT_TRUSTED = "certificate not trusted"
OTHER_MACHINE = "other machine"
OTHER = "failed"

# A part of the text of a problem, and which kind that is.
_SIGNS = {
    "user name and password": WRONG_PASSWORD,
    "the BMC answered 401": WRONG_PASSWORD,
    "no connection to the BMC": NO_CONNECTION,
    "no answer within": NO_CONNECTION,
    "the connection broke": NO_CONNECTION,
    "certificate is not": NOT_TRUSTED,
    "the BMC has no system": OTHER_MACHINE,
    "systems of the BMC say": OTHER_MACHINE,
    "reports neither serial nor UUID": OTHER_MACHINE,
}
_NAMELESS = re.compile(r"It has: serial unknown, UUID ([0-9A-Fa-f-]{36})$")


def servers_table(servers: Sequence[RegisteredServer]) -> list[str]:
    rows = [("SERIAL", "BMC", "MACHINE", "PROBED", "ACTIVE JOB")]
    for each in servers:
        facts = each.probe.facts if each.probe else None
        machine = " ".join(filter(None, (facts.vendor, facts.model))) if facts else (each.vendor or "-")
        probed = "never" if each.probe is None else "ok" if each.probe.ok else what_failed(each.probe)
        rows.append((each.server_serial, each.bmc_address, machine, probed, each.active_job or "-"))
    return columns(rows)


def server_lines(server: RegisteredServer) -> list[str]:
    rows = [
        ("server", server.server_serial),
        ("bmc", f"{server.bmc_address}, tls {server.tls}"),
        ("user", f"{server.bmc_username or '-'}, {'with' if server.has_password else 'without'} a password"),
    ]
    rows += [("uuid", server.system_uuid)] if server.system_uuid else []
    rows += [("vendor", server.vendor)] if server.vendor else []
    rows += [("note", "taken for this server without its serial or UUID")] if server.unidentified else []
    rows += [("labels", ", ".join(f"{key}={value}" for key, value in server.labels.items()))] if server.labels else []
    rows += [("job", server.active_job)] if server.active_job else []
    rows += [] if server.probe else [("probed", f"never: chargehand provision server probe {server.server_serial}")]
    return [*columns(rows), *(["", *probe_lines(server.probe, server.server_serial)] if server.probe else [])]


def what_failed(probe: ProbeReport) -> str:
    """The kind of the problem: each has its own advice."""
    return next((kind for sign, kind in _SIGNS.items() if sign in probe.problem), OTHER)


def _failed(probe: ProbeReport, serial: str) -> list[str]:
    kind = what_failed(probe)
    change = f"chargehand provision server add {serial}"
    advice = {
        NO_CONNECTION: f"check that the server reaches the BMC at its address; to change that: {change} --bmc URL",
        WRONG_PASSWORD: f"to change them: {change} --user NAME",
        NOT_TRUSTED: f"to trust this one: {change} --tls sha256:HEX, its fingerprint; --tls insecure trusts every one",
        OTHER_MACHINE: f"is this the right BMC? If it is, register it by the serial that it shows; if not: {change} --bmc URL",
    }.get(kind, "look at the BMC itself; what it answered is shown above")
    if nameless := _NAMELESS.search(probe.problem):
        advice = f"add --uuid {nameless[1]}, which the BMC shows: {change} --uuid {nameless[1]}"
    elif "--unidentified" in in_our_words(probe.problem):
        advice = f"if it is the right one: {change} --unidentified"
    return [f"probed at {day(probe.at)}, {kind}: {in_our_words(clean(probe.problem))}", advice]


def probe_lines(probe: ProbeReport, serial: str) -> list[str]:
    """The report of a BMC, and what it means for jobs."""
    if not probe.ok or probe.facts is None:
        return _failed(probe, serial)
    facts = probe.facts
    rows = [
        ("probed", day(probe.at)),
        ("machine", " ".join(filter(None, (facts.manufacturer, facts.model))) or "-"),
        ("vendor", f"{facts.vendor}, quirks of {facts.quirks}" if facts.quirks else facts.vendor),
        ("serial", facts.serial or "-"),
        ("uuid", facts.uuid or "-"),
        ("bios", facts.bios_version or "-"),
        ("redfish", facts.redfish_version or "-"),
        ("power", facts.power),
        ("drives", ", ".join(f"{slot.name} ({slot.kind})" for slot in facts.slots) or "none"),
        ("resets", ", ".join(facts.reset_types) or "not said"),
        ("boots", ", ".join(facts.boot_targets) or "not said"),
        ("modes", ", ".join(facts.boot_modes) or "not said"),
    ]
    return [*columns(rows), "", *(f"{line}" for line in meanings(facts))]


def meanings(facts: BmcFacts) -> list[str]:
    cds = [slot for slot in facts.slots if slot.kind == "cd"]
    others = [*cds[1:], *(slot for slot in facts.slots if slot.kind == "usb")]
    lines = [_drives(cds, others)]
    if facts.reset_types and not {"ForceRestart", "GracefulRestart", "PowerCycle"} & set(facts.reset_types):
        lines.append("no restart among its resets: the machine is switched off and on")
    if facts.power == "Off":
        lines.append("the machine is off: a job switches it on")
    if facts.boot_targets and "Cd" not in facts.boot_targets:
        lines.append(
            "Cd is not among the boot targets that it names: setting the boot may fail (redfish.boot-override)"
        )
    return lines


def _drives(cds: Sequence[DriveSlot], others: Sequence[DriveSlot]) -> str:
    if not cds:
        return "no CD drive that takes an image: jobs would fail at redfish.discover; is virtual media licensed?"
    if not others:
        return f"one CD drive: both media will be in one image, in {cds[0].name}"
    kind = "the second CD drive" if others[0].kind == "cd" else "a USB drive"
    return f"two drives: the maintenance image goes into {cds[0].name}, the task medium into {others[0].name}, {kind}"
