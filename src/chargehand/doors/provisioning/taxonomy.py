"""Every way in which a provisioning job can fail: its key, its meaning, and what an operator does about it.

`docs/reference/provisioning-errors.md` is generated from this table. The keys are a contract: none is renamed or reused.
"""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    PREFLIGHT = "preflight"  # the request is checked
    ISO = "iso"  # building and serving media
    REDFISH = "redfish"  # talking to the BMC
    WORKFLOW = "workflow"  # on the machine, in the maintenance system
    FINISH = "finish"  # waiting for the report, and cleaning up


class Key(StrEnum):
    VALIDATION_SCHEMA = "validation.schema"
    VALIDATION_SERVER = "validation.server"
    CONFLICT_ACTIVE_JOB = "conflict.active_job"
    ISO_BUILD = "iso.build"
    ISO_SERVE = "iso.serve"
    REDFISH_DISCOVER = "redfish.discover"
    REDFISH_MOUNT_MAINTENANCE = "redfish.mount.maintenance"
    REDFISH_MOUNT_TASK = "redfish.mount.task"
    REDFISH_BOOT_OVERRIDE = "redfish.boot-override"
    REDFISH_RESET = "redfish.reset"
    REDFISH_POLL = "redfish.poll"
    WORKFLOW_DISPATCHER = "workflow.dispatcher"
    WORKFLOW_PARTITION = "workflow.partition"
    WORKFLOW_IMAGE_LINUX = "workflow.image-linux"
    WORKFLOW_BOOTLOADER_LINUX = "workflow.bootloader-linux"
    WORKFLOW_CONFIG_DRIVE = "workflow.config-drive"
    WORKFLOW_IMAGE_WINDOWS = "workflow.image-windows"
    WORKFLOW_BOOTLOADER_WINDOWS = "workflow.bootloader-windows"
    WEBHOOK_WAIT = "webhook.wait"
    CLEANUP_UNMOUNT = "cleanup.unmount"
    CLEANUP_RESET = "cleanup.reset"

    @property
    def entry(self) -> "Entry":
        return TAXONOMY[self]


class Entry(msgspec.Struct, frozen=True):
    phase: Phase
    can_retry: bool  # whether a retry of the unchanged job may succeed
    meaning: str
    advice: str


# fmt: off
TAXONOMY: dict[Key, Entry] = {
    Key.VALIDATION_SCHEMA: Entry(Phase.PREFLIGHT, False, "the recipe does not fit its schema",
        "correct the fields that `details` names; `chargehand provision recipe validate FILE` checks without submitting"),
    Key.VALIDATION_SERVER: Entry(Phase.PREFLIGHT, False, "the server is not registered, or its record cannot be used",
        "register it with `chargehand provision server add`, then `chargehand provision server probe SERIAL`"),
    Key.CONFLICT_ACTIVE_JOB: Entry(Phase.PREFLIGHT, True, "another job is active for this server",
        "wait for that job, or cancel it"),
    Key.ISO_BUILD: Entry(Phase.ISO, True, "the task medium could not be built",
        "read the event's message: usually the disk is full, or a directory under server.data_dir cannot be written"),
    Key.ISO_SERVE: Entry(Phase.ISO, True, "the file of a medium cannot be read",
        "check that provisioning.maintenance_iso names a file that the server may read, and that BMCs reach provisioning.public_url"),
    Key.REDFISH_DISCOVER: Entry(Phase.REDFISH, True, "the system, its virtual media or its actions were not found at the BMC",
        "check address, credentials, TLS and the serial with `chargehand provision server probe SERIAL`"),
    Key.REDFISH_MOUNT_MAINTENANCE: Entry(Phase.REDFISH, True, "the maintenance image could not be inserted",
        "check that the BMC reaches provisioning.public_url, that its virtual media is licensed, and that no console holds the drive"),
    Key.REDFISH_MOUNT_TASK: Entry(Phase.REDFISH, True, "the task medium could not be inserted",
        "check that the BMC reaches provisioning.public_url and that its second drive is free"),
    Key.REDFISH_BOOT_OVERRIDE: Entry(Phase.REDFISH, True, "the one-time boot from CD could not be set",
        "check the boot settings in the BMC: some refuse an override while the firmware has changes pending"),
    Key.REDFISH_RESET: Entry(Phase.REDFISH, True, "the system could not be reset",
        "look at the machine's power in the BMC, reset it by hand once, then retry the job"),
    Key.REDFISH_POLL: Entry(Phase.REDFISH, True, "after the reset, the BMC did not answer in time, or the system was not powered on in time",
        "check the BMC's network and whether the machine is on, then retry the job"),
    Key.WORKFLOW_DISPATCHER: Entry(Phase.WORKFLOW, True, "the maintenance system could not start the work",
        "read the log tail: the task medium was not found, it is for another machine, or this image does not know the recipe"),
    Key.WORKFLOW_PARTITION: Entry(Phase.WORKFLOW, False, "partitioning the disk failed",
        "check target_disk and partition_layout against the disks that the log tail names"),
    Key.WORKFLOW_IMAGE_LINUX: Entry(Phase.WORKFLOW, True, "writing the Linux image failed",
        "check that the machine reaches the registry and that the registry has the image of oci_url"),
    Key.WORKFLOW_BOOTLOADER_LINUX: Entry(Phase.WORKFLOW, False, "installing the boot loader failed",
        "check that the layout has an ESP or a BIOS boot partition and that the image holds a kernel and GRUB"),
    Key.WORKFLOW_CONFIG_DRIVE: Entry(Phase.WORKFLOW, False, "writing the first-boot configuration failed",
        "check user_data and network_config, and that the layout has room for them"),
    Key.WORKFLOW_IMAGE_WINDOWS: Entry(Phase.WORKFLOW, True, "applying the Windows image failed",
        "check oci_url and wim_index, and that the machine reaches the registry"),
    Key.WORKFLOW_BOOTLOADER_WINDOWS: Entry(Phase.WORKFLOW, False, "installing the Windows boot loader failed",
        "check that the layout has an ESP and that unattend_xml is complete"),
    Key.WEBHOOK_WAIT: Entry(Phase.FINISH, True, "the machine did not report in time",
        "look at the machine's console: did it boot from the medium, and does it reach provisioning.public_url?"),
    Key.CLEANUP_UNMOUNT: Entry(Phase.FINISH, True, "virtual media could not be ejected",
        "eject it in the BMC; the job's outcome stands"),
    Key.CLEANUP_RESET: Entry(Phase.FINISH, True, "the last reset failed",
        "reset the machine by hand; the job's outcome stands"),
}

UNITS: dict[str, Key] = {
    "provision-dispatcher.service": Key.WORKFLOW_DISPATCHER,
    "partition.service": Key.WORKFLOW_PARTITION,
    "image-linux.service": Key.WORKFLOW_IMAGE_LINUX,
    "bootloader-linux.service": Key.WORKFLOW_BOOTLOADER_LINUX,
    "config-drive.service": Key.WORKFLOW_CONFIG_DRIVE,
    "image-windows.service": Key.WORKFLOW_IMAGE_WINDOWS,
    "bootloader-windows.service": Key.WORKFLOW_BOOTLOADER_WINDOWS,
}
# fmt: on


def of_unit(unit: str) -> str:
    """Return the key of a unit that failed. For a unit that is not in the table, the key contains its name."""
    name = unit.strip()
    return str(UNITS.get(name) or UNITS.get(f"{name}.service") or f"workflow.{name.removesuffix('.service')}")
