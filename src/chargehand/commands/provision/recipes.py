"""`chargehand provision recipe`: validate a recipe, or print the schema, by the server's own code and without a server."""

from typing import Annotated

import typer

from chargehand.commands.options import Json, called, read_file, show_found
from chargehand.commands.provision.refusals import not_valid

app = typer.Typer(help="Check recipes before anything is submitted.", no_args_is_help=True)


@app.command("validate")
def validate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The recipe, a JSON file; - is standard input.")],
    json: Json = False,
) -> None:
    """Check a recipe and say everything that is wrong with it. No server is asked.

    Exit code 1: it is not valid. What is wrong is shown by its place in the file, as a JSON pointer.

    Example: chargehand provision recipe validate linux.json
    """
    from chargehand.commands.text import clean
    from chargehand.doors.provisioning.recipe.recipe import Recipe, check
    from chargehand.doors.provisioning.refusals import ProvisioningRefused

    given = read_file(file)
    try:
        recipe = check(given)
    except ProvisioningRefused as error:
        wrong = [f"  {clean(detail.path) or '/'}: {clean(detail.message)}" for detail in error.details]
        found = {"valid": False, "schema_id": Recipe.schema_id, "details": error.details}
        show_found(found, json, lambda: [f"{not_valid(called(file), len(wrong))}:", *wrong])
        raise typer.Exit(1) from None
    told = f"{called(file)} is valid: {recipe.target}, after success {recipe.on_success}, after failure {recipe.on_failure}"
    show_found({"valid": True, "schema_id": Recipe.schema_id, "details": []}, json, lambda: [told])


@app.command("schema")
def schema(json: Json = False) -> None:
    """Print the JSON Schema of recipes, for editors and for other checkers. With --json it is the same.

    Example: chargehand provision recipe schema > recipe.schema.json
    """
    from chargehand.doors.provisioning.recipe.schema import SCHEMA_BYTES

    typer.echo(SCHEMA_BYTES.decode(), nl=False)
