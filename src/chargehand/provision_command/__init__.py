"""`chargehand provision`: machines, recipes and jobs from a terminal.

Everything is asked of a server over HTTP, but for recipes, which are checked on the spot. Exit codes: 0 it went well; 1 it did not
(a job failed, a BMC could not be asked, a recipe is not valid); 2 the command or the server refused; 3 the job was cancelled.
"""

import typer

from chargehand.provision_command import jobs, recipes, servers

app = typer.Typer(
    help="Provision servers: register them, check recipes, submit jobs and watch them, step by step.",
    no_args_is_help=True,
)
app.add_typer(servers.app, name="server")
app.add_typer(recipes.app, name="recipe")
app.registered_commands += jobs.app.registered_commands
