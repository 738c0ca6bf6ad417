"""`chargehand deliveries`: what was told to whom, what was given up, and once more please."""

from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.options import DEFAULT_URL, Json, Token, Url, show_json
from chargehand.commands.refusals import each_of, job_id_of, refuse

if TYPE_CHECKING:
    from chargehand.commands.calling import Api
    from chargehand.commands.calling import Json as Told

PAGE = 500
STATES = ("pending", "delivered", "dead")
HOW_TO_LIST = "chargehand deliveries list"
HOW_TO_LIST_ENDPOINTS = "chargehand deliveries endpoints"

app = typer.Typer(
    help="Webhooks: what was told to whom, what was given up, and once more please.", no_args_is_help=True
)

Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Its id, or its URL.")]


@app.command("list")
def list_deliveries(
    state: Annotated[
        str, typer.Option(metavar="|".join(STATES), help="Only those.", autocompletion=lambda: STATES)
    ] = "",
    endpoint: Annotated[str, typer.Option(metavar="ENDPOINT", help="Only those to it: its id, or its URL.")] = "",
    job: Annotated[str, typer.Option(metavar="JOB", help="Only those about this job.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 20,
    before: Annotated[
        str, typer.Option(metavar="DELIVERY", help="Only those older than this one: the next page.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """List deliveries, newest first.

    Example: chargehand deliveries list --state dead
    """
    if state and state not in STATES:
        refuse(f"--state {state}: say one of {', '.join(STATES)}")
    from chargehand.commands.calling import ask
    from chargehand.commands.deliveries.text import deliveries_table

    async def do(api: "Api") -> "tuple[list[Told], str | None]":
        found: list[Told] = []
        by = {"state": state, "job": job_id_of(job) if job else ""}
        by["endpoint"] = (await _endpoint(api, endpoint))["id"] if endpoint else ""
        cursor: str | None = before
        while cursor is not None and len(found) < limit:
            asked = {**by, "cursor": cursor, "limit": str(min(PAGE, limit - len(found)))}
            page = await api.get("/engine/deliveries", {name: value for name, value in asked.items() if value})
            found += page["deliveries"]
            cursor = page["next"]
        return found, cursor

    found, following = ask(url, token, do, how_to_list=HOW_TO_LIST)
    if json:
        show_json({"deliveries": found, "next": following})
    elif found:
        typer.echo("\n".join(deliveries_table(found)))
        if following:
            typer.echo(f"There may be more: --before {following}, or a higher --limit.", err=True)
    else:
        typer.echo(
            "There are none."
            if state or endpoint or job or before
            else "There are none yet: give a job a receiver with `chargehand submit --webhook URL`"
        )


@app.command("show")
def show(
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="Its id, which is the `webhook-id` too.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Show a delivery and every try: when, which status, how long it took, what the receiver said.

    Example: chargehand deliveries show 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    from chargehand.commands.calling import ask
    from chargehand.commands.deliveries.text import delivery_lines

    found = ask(url, token, lambda api: api.get(_path(delivery)), how_to_list=HOW_TO_LIST)
    if json:
        show_json(found)
    else:
        typer.echo("\n".join(delivery_lines(found)))


@app.command("replay")
def replay(
    deliveries: Annotated[list[str] | None, typer.Argument(metavar="DELIVERY…", help="Ids of deliveries.")] = None,
    endpoint: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="Instead: all dead ones of this endpoint, by its id or its URL.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Send deliveries once more, dead or delivered. Each keeps its id, so that a receiver knows it again.

    One that is refused does not keep the others: exit code 1 if only some are sent.

    Example: chargehand deliveries replay 01K8Z4T5Y6M7QW3RX2B9VN0HCD

    Example: chargehand deliveries replay --endpoint http://127.0.0.1:9000/stories
    """
    if bool(deliveries) == bool(endpoint):
        refuse("say which: ids of deliveries, or --endpoint for all dead ones of one")
    from chargehand.commands.calling import ask
    from chargehand.commands.text import plural

    async def dead_of_endpoint(api: "Api") -> "Told":
        place = await _endpoint(api, endpoint)
        return await api.post(f"/engine/endpoints/{place['id']}/replay")

    counts: list[int] = []

    def one(delivery: str) -> None:
        path, facts = f"{_path(delivery)}/replay", {"delivery_id": delivery}
        told = ask(url, token, lambda api: api.post(path), how_to_list=HOW_TO_LIST, facts=facts)
        counts.append(int(told["replayed"]))

    try:
        if endpoint:
            counts.append(int(ask(url, token, dead_of_endpoint, how_to_list=HOW_TO_LIST)["replayed"]))
        each_of([_id_of(each) for each in deliveries or ()], one)
    finally:
        count = sum(counts)
        if counts and json:
            show_json({"replayed": count})
        elif counts:
            typer.echo(f"{plural(count, 'delivery')} will be sent once more." if count else "None was dead.")


@app.command("endpoints")
def endpoints(url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """List the receivers of webhooks, with what is due and what is dead.

    Example: chargehand deliveries endpoints
    """
    from chargehand.commands.calling import ask
    from chargehand.commands.deliveries.text import endpoints_table

    found = ask(url, token, _endpoints)
    if json:
        show_json({"endpoints": found})
    elif found:
        typer.echo("\n".join(endpoints_table(found)))
    else:
        typer.echo("There are none yet: give a job a receiver with `chargehand submit --webhook URL`")


@app.command("pause")
def pause(endpoint: Endpoint, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Send nothing to an endpoint until it is resumed. What is due to it waits.

    Example: chargehand deliveries pause http://127.0.0.1:9000/stories
    """
    _set("pause", endpoint, url, token, json)


@app.command("resume")
def resume(endpoint: Endpoint, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Send again to an endpoint that was paused, or that was disabled because it answered 410.

    Example: chargehand deliveries resume http://127.0.0.1:9000/stories
    """
    _set("resume", endpoint, url, token, json)


def _set(verb: str, endpoint: str, url: str, token: str, json: bool) -> None:
    from chargehand.commands.calling import ask

    async def do(api: "Api") -> "Told":
        place = await _endpoint(api, endpoint)
        return await api.post(f"/engine/endpoints/{place['id']}/{verb}")

    found = ask(url, token, do, how_to_list=HOW_TO_LIST_ENDPOINTS)
    if json:
        show_json(found)
    else:
        typer.echo(f"{found['url']} is {found['state']}.")


def _id_of(delivery: str) -> str:
    return job_id_of(delivery, "a delivery", HOW_TO_LIST)


def _path(delivery: str) -> str:
    return f"/engine/deliveries/{_id_of(delivery)}"


async def _endpoints(api: "Api") -> "list[Told]":
    found: list[Told] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await api.get("/engine/endpoints", {"limit": str(PAGE), **({"cursor": cursor} if cursor else {})})
        found += page["endpoints"]
        cursor = page["next"]
    return found


async def _endpoint(api: "Api", said: str) -> "Told":
    """By its id, or by its URL: an endpoint is a URL without its query."""
    plain = said.partition("?")[0]
    for each in await _endpoints(api):
        if said == each["id"] or plain.rstrip("/") == each["url"].rstrip("/"):
            return each
    return refuse(f"there is no endpoint {said}; to see which there are: {HOW_TO_LIST_ENDPOINTS}", "not_found")
