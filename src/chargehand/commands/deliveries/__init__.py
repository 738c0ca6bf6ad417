"""`chargehand deliveries`: list webhooks and their endpoints, send them again, pause and resume endpoints."""

from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.connection import connected
from chargehand.commands.options import (
    DEFAULT_URL,
    Json,
    Limit,
    Token,
    Url,
    one_of,
    show_found,
    show_json,
    show_page,
)
from chargehand.commands.refusals import each_of, job_id_of, refuse

if TYPE_CHECKING:
    from chargehand.client import Client
    from chargehand.client.types.deliveries import DeliveryState, Endpoint

STATES: "tuple[DeliveryState, ...]" = ("pending", "delivered", "dead")
HOW_TO_LIST = "chargehand deliveries list"
HOW_TO_LIST_ENDPOINTS = "chargehand deliveries endpoints"
NONE_YET = "No webhooks yet: give a job a receiver with `chargehand submit --webhook URL`"

app = typer.Typer(help="Webhooks: list and repeat deliveries; list, pause and resume endpoints.", no_args_is_help=True)

EndpointName = Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint's id, or its URL.")]


@app.command("list")
def list_deliveries(
    state: Annotated[
        str, typer.Option(metavar="|".join(STATES), help="Only in this state.", autocompletion=lambda: STATES)
    ] = "",
    endpoint: Annotated[str, typer.Option(metavar="ENDPOINT", help="Only to this endpoint: its id or URL.")] = "",
    job: Annotated[str, typer.Option(metavar="JOB", help="Only deliveries about this job.")] = "",
    limit: Limit = 20,
    before: Annotated[
        str, typer.Option(metavar="DELIVERY", help="Only deliveries older than this one: the next page.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """List deliveries, newest first.

    Example: chargehand deliveries list --state dead
    """
    by_state = one_of("--state", state, STATES)
    from chargehand.commands.deliveries.text import deliveries_table

    job_id = job_id_of(job) if job else ""
    with connected(url, token, how_to_list=HOW_TO_LIST) as client:
        endpoint_id = _endpoint(client, endpoint).id if endpoint else ""
        found = list(
            client.deliveries.find(state=by_state, job=job_id, endpoint=endpoint_id, before=before, limit=limit + 1)
        )
    none = "No delivery matches." if state or endpoint or job or before else NONE_YET
    show_page("deliveries", found, limit, json, deliveries_table, none)


@app.command("show")
def show(
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="The id, which is its `webhook-id` too.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Show a delivery and every try: when, which status, how long it took, what the receiver answered.

    Example: chargehand deliveries show 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    from chargehand.commands.deliveries.text import delivery_lines

    delivery_id = _id_of(delivery)
    with connected(url, token, how_to_list=HOW_TO_LIST) as client:
        found = client.deliveries.get(delivery_id)
    show_found(found, json, lambda: delivery_lines(found))


@app.command("replay")
def replay(
    deliveries: Annotated[list[str] | None, typer.Argument(metavar="DELIVERY…", help="Ids of deliveries.")] = None,
    endpoint: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="All dead deliveries of this endpoint instead: its id or URL.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Send deliveries again, dead or delivered. Each keeps its id, by which a receiver recognises it.

    If one is refused, the command goes on with the others: exit code 1 if only some are sent.

    Example: chargehand deliveries replay 01K8Z4T5Y6M7QW3RX2B9VN0HCD

    Example: chargehand deliveries replay --endpoint http://127.0.0.1:9000/stories
    """
    if bool(deliveries) == bool(endpoint):
        refuse("give either ids of deliveries, or --endpoint for all dead deliveries of an endpoint")
    from chargehand.commands.text import plural

    counts: list[int] = []

    def one(delivery_id: str) -> None:
        with connected(url, token, how_to_list=HOW_TO_LIST, facts={"delivery_id": delivery_id}) as client:
            client.deliveries.replay(delivery_id)
        counts.append(1)

    try:
        if endpoint:
            with connected(url, token, how_to_list=HOW_TO_LIST) as client:
                counts.append(client.deliveries.replay_all(_endpoint(client, endpoint).id))
        each_of([_id_of(each) for each in deliveries or ()], one)
    finally:
        count = sum(counts)
        if counts and json:
            show_json({"replayed": count})
        elif counts:
            typer.echo(f"{plural(count, 'delivery')} will be sent once more." if count else "No delivery was dead.")


@app.command("endpoints")
def endpoints(url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """List the receivers of webhooks, with how many of their deliveries are due and dead.

    Example: chargehand deliveries endpoints
    """
    from chargehand.commands.deliveries.text import endpoints_table

    with connected(url, token) as client:
        found = list(client.deliveries.endpoints())
    show_found({"endpoints": found}, json, lambda: endpoints_table(found) if found else [NONE_YET])


@app.command("pause")
def pause(endpoint: EndpointName, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Send nothing to an endpoint until it is resumed. Its deliveries wait.

    Example: chargehand deliveries pause http://127.0.0.1:9000/stories
    """
    with connected(url, token, how_to_list=HOW_TO_LIST_ENDPOINTS) as client:
        _show_state(client.deliveries.pause(_endpoint(client, endpoint).id), json)


@app.command("resume")
def resume(endpoint: EndpointName, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Send again to an endpoint that was paused, or that was disabled because it answered 410.

    Example: chargehand deliveries resume http://127.0.0.1:9000/stories
    """
    with connected(url, token, how_to_list=HOW_TO_LIST_ENDPOINTS) as client:
        _show_state(client.deliveries.resume(_endpoint(client, endpoint).id), json)


def _show_state(endpoint: "Endpoint", json: bool) -> None:
    show_found(endpoint, json, lambda: [f"{endpoint.url} is {endpoint.state}."])


def _id_of(delivery: str) -> str:
    return job_id_of(delivery, "a delivery", HOW_TO_LIST)


def _endpoint(client: "Client", name: str) -> "Endpoint":
    """Find an endpoint by its id, or by its URL without the query."""
    plain = name.partition("?")[0].rstrip("/")
    for each in client.deliveries.endpoints():
        if name == each.id or plain == each.url.rstrip("/"):
            return each
    return refuse(f"there is no endpoint {name}; to list the endpoints: {HOW_TO_LIST_ENDPOINTS}", "not_found")
