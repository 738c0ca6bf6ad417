"""`chargehand completion`: print the script that makes a shell complete commands, options and ids of jobs."""

from enum import StrEnum
from typing import Annotated

import typer

from chargehand.commands.options import Json, show_json

app = typer.Typer()
PROGRAM = "chargehand"
VARIABLE = "_CHARGEHAND_COMPLETE"  # set by the shell when it asks; typer derives it from the program's name


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
    """Let typer answer shells. It does so by itself only with its own options, which write into users' files."""
    from typer._completion_classes import completion_init

    completion_init()
