"""Generate the pages about provisioning from the code: error keys, and the fields of a recipe."""

from typing import Any

from chargehand.doors.provisioning.recipe.schema import SCHEMA
from chargehand.doors.provisioning.taxonomy import TAXONOMY, UNITS, Phase

PHASES = {
    Phase.PREFLIGHT: "While the request is answered: there is no job",
    Phase.ISO: "Building and serving media",
    Phase.REDFISH: "Talking to the BMC",
    Phase.WORKFLOW: "On the machine, in the maintenance system",
    Phase.FINISH: "Waiting for the report, and cleaning up",
}
TARGETS = {"linux": "install-linux.target", "windows": "install-windows.target", "esxi": "install-esxi.target", "firmware": "supermicro-update.target"}  # fmt: skip


def errors() -> str:
    lines = [
        "# What can go wrong when a server is provisioned",
        "",
        "A job that failed has one of these keys as its `failed_step`; a request that was refused has one as its `error`. The keys are a",
        "contract: none is renamed. _Again_: whether the same job may well succeed when it is retried as it is.",
    ]
    for phase, title in PHASES.items():
        lines += ["", f"## {title}", "", "| key | meaning | again | what to do |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{key}` | {entry.meaning} | {'yes' if entry.can_retry else 'no'} | {entry.advice} |"
            for key, entry in TAXONOMY.items()
            if entry.phase is phase
        ]
    lines += [
        "",
        "What fails in `cleanup.*` is a warning of the job, never its outcome.",
        "",
        "## From the machine's unit to the key",
        "",
        "A machine reports the systemd unit that failed. One that is not in this table gives `workflow.` and its name.",
        "",
        "| unit | key |",
        "| --- | --- |",
        *[f"| `{unit}` | `{key}` |" for unit, key in UNITS.items()],
    ]
    return "\n".join(lines) + "\n"


def recipe() -> str:
    fields: dict[str, Any] = SCHEMA["properties"]
    lines = [
        "# The recipe, field by field",
        "",
        f"One JSON object. Its schema is `{SCHEMA['$id']}`; `chargehand provision recipe schema` prints it,",
        "and `chargehand provision recipe validate FILE` says everything that is wrong with a recipe at once. A field that is not here is",
        "refused. _needs_: required for that target; _needs\\*_: required unless the image is a `raw-disk`; _may_: allowed; _-_: refused.",
        "",
        f"| field | {' | '.join(TARGETS)} | default | meaning |",
        f"| --- | {' | '.join('---' for _ in TARGETS)} | --- | --- |",
        *[_row(name, field) for name, field in fields.items()],
        "",
        "_linux_ is `install-linux.target`, _windows_ `install-windows.target`, _esxi_ `install-esxi.target`, _firmware_",
        "`supermicro-update.target`. With `image_format` `raw-disk` the image brings its own disk: `partition_layout`, and for windows",
        "`wim_index` and `unattend_xml`, are refused then.",
        "",
        "## target_disk, as hints",
        "",
        "All that are given must fit exactly one disk.",
        "",
        *_table(fields["target_disk"]["properties"]),
        "",
        "## partition_layout, each partition",
        "",
        f"Required: {', '.join(f'`{name}`' for name in SCHEMA['$defs']['partition']['required'])}. `100%` stands last; labels are unique.",
        "",
        *_table(SCHEMA["$defs"]["partition"]["properties"]),
        "",
        "## Files: user_data, meta_data, network_config, unattend_xml, ks_cfg",
        "",
        f"Each is {_plain(SCHEMA['$defs']['payload']['description'])}.",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, field: dict[str, Any]) -> str:
    default = f"`{field['default']}`" if "default" in field else ""
    return f"| `{name}` | {' | '.join(_use(name, target) for target in TARGETS.values())} | {default} | {_meaning(field)} |"


def _use(name: str, target: str) -> str:
    [rule] = [each["then"] for each in SCHEMA["allOf"] if each["if"]["properties"]["task_target"]["const"] == target]
    if name in [*SCHEMA["required"], *rule["required"]]:
        return "needs"
    if name in rule.get("else", {}).get("required", ()):
        return "needs\\*"
    return "-" if rule["properties"].get(name) is False else "may"


def _table(properties: dict[str, Any]) -> list[str]:
    rows = [f"| `{name}` | {_meaning(field)} |" for name, field in properties.items()]
    return ["| field | meaning |", "| --- | --- |", *rows]


def _meaning(field: dict[str, Any]) -> str:
    if "$ref" in field and "description" not in field:
        field = SCHEMA["$defs"][field["$ref"].rpartition("/")[2]]
    options = f": {', '.join(f'`{value}`' for value in field['enum'])}" if "enum" in field else ""
    return _plain(field["description"]) + options


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
