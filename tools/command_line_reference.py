"""Generate the reference page of the command line from the code: every command, argument and option."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from chargehand.cli import app
from chargehand.commands.exit_codes import MEANINGS

COMMON = ("url", "token", "json", "help")
HEAD = """# Commands

Every command of `chargehand`, made from the code. How they are used together: [command-line.md](../command-line.md).

All that talk to a server have:

| option | environment variable | meaning |
| --- | --- | --- |
| `--url` | `CHARGEHAND_URL` | The server. Default: `http://127.0.0.1:8484` |
| `--token` | `CHARGEHAND_TOKEN` | Your token. Safer in the environment: arguments can be seen |
| `--json` | | For programs; refusals too, as one object on stderr: `error`, `message`, `details` |
| `--help`, `-h` | | What the command does, with examples |

`NO_COLOR` switches colours off on a terminal; elsewhere there are none.

## Exit codes

| code | meaning |
| --- | --- |
"""


def command_line() -> str:
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items())
    root = typer.main.get_group(app)
    sections = [_section(f"chargehand {name}", command) for name, command in _commands(root)]
    return HEAD + codes + "\n" + "\n".join(sections)


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{before}{name}"
        if hasattr(command, "commands"):
            yield from _commands(command, f"{full} ")
        else:
            yield full, command


def _section(name: str, command: Any) -> str:
    paragraphs = [" ".join(each.split()) for each in (command.help or "").split("\n\n")]
    texts = [each for each in paragraphs if not each.startswith("Example: ")]
    examples = [each.removeprefix("Example: ") for each in paragraphs if each.startswith("Example: ")]
    shown = [each for each in command.params if each.name not in COMMON]
    arguments = " ".join(_name(each) for each in shown if each.param_type_name == "argument")
    lines = [
        f"## `{name}`",
        "",
        f"`{' '.join(filter(None, (name, '[OPTIONS]', arguments)))}`",
        "",
        "\n\n".join(texts),
        "",
    ]
    if examples:
        lines += ["```", *examples, "```", ""]
    if shown:
        lines += ["| argument or option | meaning |", "| --- | --- |", *map(_row, shown), ""]
    return "\n".join(lines)


def _row(param: Any) -> str:
    is_option = param.param_type_name == "option"
    names = [*param.opts, *param.secondary_opts] if is_option else [_name(param)]
    value = f" {param.metavar}" if is_option and param.metavar else ""
    default = param.default if is_option and not callable(param.default) else None
    told = (
        f" Default: `{default}`." if default not in (None, "", False, (), []) and not isinstance(default, bool) else ""
    )
    variable = f" Environment: `{param.envvar}`." if getattr(param, "envvar", None) else ""
    needed = " Required." if is_option and param.required else ""
    text = re.sub(r"\s+", " ", param.help or "").replace("|", "\\|")
    shown = ", ".join(f"`{name}{value}`" for name in names).replace("|", "\\|")
    return f"| {shown} | {text}{told}{variable}{needed} |"


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())
