"""`chargehand provision`: machines, recipes and jobs from a terminal.

Everything is asked of a server over HTTP, but for recipes, which are checked on the spot. What the exit codes mean is in `exits`.
"""

import typer

from chargehand.commands.provision import jobs, recipes, servers

app = typer.Typer(
    help="Provision servers: register them, check recipes, submit jobs and watch them, step by step.",
    no_args_is_help=True,
)
app.add_typer(servers.app, name="server")
app.add_typer(recipes.app, name="recipe")
app.registered_commands += jobs.app.registered_commands
