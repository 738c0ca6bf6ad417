"""`chargehand flows`: submit, list, show, watch, cancel and retry flows, jobs that wait for each other."""

from typing import TYPE_CHECKING, Annotated

import typer

from chargehand.commands.connection import connected
from chargehand.commands.options import (
    DEFAULT_URL,
    HOW_TO_LIST_FLOWS,
    FlowId,
    FlowIds,
    Json,
    Limit,
    Token,
    Url,
    Watch,
    called,
    one_of,
    read_file,
    show_found,
    show_json,
    show_page,
    step_names,
)
from chargehand.commands.refusals import each_of, job_id_of
from chargehand.commands.watch import watch_to_the_end

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from chargehand.client import Client
    from chargehand.client.types.engine import State

STATES: "tuple[State, ...]" = ("running", "succeeded", "failed", "cancelled")
NONE_YET = "No flows yet: chargehand flows submit --help"

app = typer.Typer(
    help="Flows, jobs that wait for each other: submit, list, show, watch, cancel and retry them.", no_args_is_help=True
)


@app.command("submit")
def submit(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The flow as JSON, as docs/flows.md shows it; - reads standard input.")
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="A word to find it by, in place of the file's.")] = "",
    webhook: Annotated[
        str, typer.Option(metavar="URL", help="Gets every change of the flow's state, in place of the file's webhook.")
    ] = "",
    idempotency_key: Annotated[
        str, typer.Option(metavar="KEY", help="The same key gives the same flow: a script may safely run twice.")
    ] = "",
    wait: Annotated[
        bool,
        typer.Option("--wait", "--watch", help="Show what happens to the flow until it ends, as `flows watch` does."),
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Submit a flow, all of its steps or none, and print its id when it is on the server's disk.

    Example: chargehand flows submit nightly.json

    Example: ./make-flow | chargehand flows submit - --name nightly --webhook http://127.0.0.1:9000/flows --wait
    """
    from chargehand.commands.submit import requests
    from chargehand.commands.submit.sending import send

    made = requests.flow(read_file(file), called(file), name, webhook)
    send(made, idempotency_key, url, token, watch=wait, json=json)


@app.command("list")
def list_flows(
    state: Annotated[
        str, typer.Option(metavar="|".join(STATES), help="Only flows in this state.", autocompletion=lambda: STATES)
    ] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Only flows of this name.")] = "",
    limit: Limit = 20,
    before: Annotated[
        str, typer.Option(metavar="FLOW", help="Only flows older than this one: the next page, as `next` names it.")
    ] = "",
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """List flows, newest first.

    Example: chargehand flows list --state failed

    Example: chargehand flows list --name nightly --limit 100 --json
    """
    by_state = one_of("--state", state, STATES)
    from chargehand.commands.flows.text import flows_table

    cursor = _id_of(before) if before else ""
    with connected(url, token) as client:
        found = list(client.flows.find(state=by_state, name=name, before=cursor, limit=limit + 1))
    none = "No flow matches." if state or name or before else NONE_YET
    show_page("flows", found, limit, json, flows_table, none)


@app.command("show")
def show(flow: FlowId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show a flow and its steps: the state of each, what it waits for, why it failed.

    Example: chargehand flows show 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    flow_id = _id_of(flow)
    from chargehand.commands.doors import whole_flow
    from chargehand.commands.flows.text import flow_lines

    with connected(url, token, how_to_list=HOW_TO_LIST_FLOWS) as client:
        found = whole_flow(client, flow_id)
    show_found(found, json, lambda: flow_lines(found))


@app.command("watch")
def watch(flow: FlowId, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Show how each step of a flow ends, as it happens, until the flow ends.

    The steps go to stderr and the result to stdout. The command waits for a server that restarts; Ctrl-C leaves the flow
    running. With --json: an object a line, whose `type` is event or end.

    Exit code 0: succeeded; 1: failed; 3: cancelled.

    Example: chargehand flows watch 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    from chargehand.commands.doors import TABLE

    watch_to_the_end(_id_of(flow), url, token, json, TABLE["flow"])


@app.command("cancel")
def cancel(flows: FlowIds, url: Url = DEFAULT_URL, token: Token = "", json: Json = False) -> None:
    """Cancel flows with their steps. A flow ends when those of its steps that run have ended.

    If one is refused, the command goes on with the others: exit code 1 if only some were cancelled.

    Example: chargehand flows cancel 01K8Z4T5Y6M7QW3RX2B9VN0HCD
    """
    from chargehand.commands.jobs.text import cancelled_line

    def one(flow_id: str) -> None:
        with _changing(flow_id, url, token) as client:
            client.flows.cancel(flow_id)
            found = client.flows.get(flow_id)
        show_found(found, json, lambda: [cancelled_line(flow_id, found.state)])

    each_of([_id_of(each) for each in flows], one)


@app.command("retry")
def retry(
    flow: FlowId,
    step: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="STEP",
            help="This step and all that come after it; without: all that did not succeed.",
            autocompletion=step_names,
        ),
    ] = "",
    watch: Watch = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    json: Json = False,
) -> None:
    """Run steps of a flow that failed or was cancelled again. The other steps keep their results.

    Example: chargehand flows retry 01K8Z4T5Y6M7QW3RX2B9VN0HCD --from report --watch
    """
    flow_id = _id_of(flow)
    from chargehand.commands.doors import TABLE

    with _changing(flow_id, url, token) as client:
        client.flows.retry(flow_id, step)
        found = client.flows.get(flow_id)
    if json:
        show_json({"type": "retried", "job_id": flow_id, "kind": "flow"} if watch else found)
    else:
        typer.echo(f"{flow_id} is {found.state} again.", err=watch)
    if watch:
        watch_to_the_end(flow_id, url, token, json, TABLE["flow"])


def _id_of(text: str) -> str:
    return job_id_of(text, "a flow", HOW_TO_LIST_FLOWS)


def _changing(flow_id: str, url: str, token: str) -> "AbstractContextManager[Client]":
    look = f"to check: chargehand flows show {flow_id}"
    return connected(url, token, how_to_list=HOW_TO_LIST_FLOWS, in_doubt=look, facts={"job_id": flow_id})
