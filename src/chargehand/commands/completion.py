"""`chargehand completion`: the script that makes a shell complete commands, options and ids of jobs."""

from enum import StrEnum
from typing import Annotated

import typer

from chargehand.commands.options import Json, show_json

app = typer.Typer()
PROGRAM = "chargehand"
VARIABLE = "_CHARGEHAND_COMPLETE"  # by which the shell asks; the name is made from the program's


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("completion")
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Which shell is to complete.")],
    json: Json = False,
) -> None:
    """Print a script that makes your shell complete commands, options and ids of jobs. No file is changed.

    Example: source <(chargehand completion bash)

    Example: chargehand completion zsh > ~/.zfunc/_chargehand

    Example: chargehand completion fish > ~/.config/fish/completions/chargehand.fish
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value)
    if json:
        show_json({"shell": shell.value, "script": script})
    else:
        typer.echo(script)


def prepare() -> None:
    """Has typer answer shells, which it does by itself only together with options that write into people's files."""
    from typer._completion_classes import completion_init

    completion_init()
