"""`chargehand provision`: register servers, check recipes, submit jobs and watch them. Recipes are checked without a server."""

import typer

from chargehand.commands.provision import jobs, recipes, servers

app = typer.Typer(
    help="Provision servers: register them, check recipes, submit jobs and watch them, step by step.",
    no_args_is_help=True,
)
app.add_typer(servers.app, name="server")
app.add_typer(recipes.app, name="recipe")
app.registered_commands += jobs.app.registered_commands
