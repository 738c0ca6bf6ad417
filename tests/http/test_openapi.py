import enum
import json
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from schemathesis.core.result import Ok

from chargehand.errors import Conflict, EgressRefused, IdempotencyMismatch, NotFound, StaleLease
from chargehand.http.openapi import describe
from chargehand.http.route import Handler, Route


class Order(enum.StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where changes of state are announced."""

    url: Annotated[str, msgspec.Meta(description="HTTPS, and not inside this network.", max_length=2048)]
    events: tuple[str, ...] = ()


class Submission(msgspec.Struct):
    """A job to do."""

    queue: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
    payload: msgspec.Raw
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 5
    webhook: Webhook | None = None


class Job(msgspec.Struct):
    id: str
    queue: str


class Page(msgspec.Struct):
    items: list[Job]
    next: str | None = None


class JobQuery(msgspec.Struct, forbid_unknown_fields=True):
    queue: Annotated[str, msgspec.Meta(description="Only this queue.")]
    state: list[str] = []
    order: Order = Order.NEWEST
    limit: Annotated[int, msgspec.Meta(description="At most this many.", ge=1, le=200)] = 50
    after: Annotated[str, msgspec.Meta(description="A `next` of an earlier page.")] | None = None


class AllOptional(msgspec.Struct):
    verbose: bool = False


async def submit_job(req: Any, resp: Any) -> None: ...
async def list_jobs(req: Any, resp: Any) -> None: ...
async def show_job(req: Any, resp: Any, job_id: str) -> None: ...
async def upload(req: Any, resp: Any, number: int, name: str) -> None: ...
async def metrics(req: Any, resp: Any) -> None: ...
async def forget(req: Any, resp: Any, job_id: str) -> None: ...


ROUTES = [
    Route(
        "POST",
        "/jobs",
        submit_job,
        "Submit a job",
        scope="jobs:write",
        tag="jobs",
        description="Answers at once; the webhook tells the rest.",
        request=Submission,
        headers={"Idempotency-Key": "The same key gives the same job."},
        status=202,
        reply=Job,
        errors=(EgressRefused, IdempotencyMismatch, Conflict),
    ),
    Route("GET", "/jobs", list_jobs, "List jobs", scope="jobs:read", tag="jobs", query=JobQuery, reply=Page),
    Route(
        "GET", "/jobs/{job_id}", show_job, "Show a job", scope="jobs:read", tag="jobs", reply=Job, errors=(NotFound,)
    ),
    Route("DELETE", "/jobs/{job_id}", forget, "Forget a job", tag="jobs", status=204, errors=(Conflict, StaleLease)),
    Route("PUT", "/images/{number:int(min=1)}/{name:path}", upload, "Upload", request=bytes, status=201),
    Route("GET", "/metrics", metrics, "Figures", reply_media="text/plain", query=AllOptional),
    Route("GET", "/docs", metrics, "A page", hidden=True),
]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return describe(ROUTES, title="Sample", version="1.2.3", description="What it does.")


def operation(document: dict[str, Any], operation_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [
        row for item in document["paths"].values() for row in item.values() if row["operationId"] == operation_id
    ]
    assert len(found) == 1
    return found[0]


def values_of(key: str, node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        for value in node.values():
            yield from values_of(key, value)
    elif isinstance(node, list):
        for value in node:
            yield from values_of(key, value)


def operation_ids(*routes: Route) -> list[str]:
    document = describe(routes, title="t", version="1", description="d")
    return list(values_of("operationId", document))


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_dict(document)
    schema.validate()
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert {row.label for row in operations} == {
        "POST /jobs",
        "GET /jobs",
        "GET /jobs/{job_id}",
        "DELETE /jobs/{job_id}",
        "PUT /images/{number}/{name}",
        "GET /metrics",
    }


def test_every_schema_is_valid_and_every_reference_resolves(document: dict[str, Any]) -> None:
    for schema in [*values_of("schema", document), *document["components"]["schemas"].values()]:
        jsonschema_rs.meta.validate(schema)
    refs = set(values_of("$ref", document))
    assert refs
    assert refs <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def test_the_document_is_plain_json(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document)) == document


def test_the_document_has_title_and_version_and_keeps_the_order_of_tags(document: dict[str, Any]) -> None:
    assert document["info"] == {"title": "Sample", "version": "1.2.3", "description": "What it does."}
    assert document["tags"] == [{"name": "jobs"}, {"name": "service"}]


def test_hidden_routes_are_left_out(document: dict[str, Any]) -> None:
    assert "/docs" not in document["paths"]


def test_a_body_is_required_and_described_by_its_type(document: dict[str, Any]) -> None:
    body = operation(document, "submit_job")["requestBody"]
    assert body == {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Submission"}}},
    }
    submission = document["components"]["schemas"]["Submission"]
    assert submission["description"] == "A job to do."
    assert submission["properties"]["payload"] == {}
    assert submission["properties"]["priority"] == {"type": "integer", "minimum": 0, "maximum": 9, "default": 5}
    url = document["components"]["schemas"]["Webhook"]["properties"]["url"]
    assert url["description"] == "HTTPS, and not inside this network."


def test_a_raw_body_is_bytes_and_not_base64(document: dict[str, Any]) -> None:
    assert operation(document, "upload")["requestBody"]["content"] == {"application/octet-stream": {}}


def test_path_parameters_come_from_the_template_without_its_converters(document: dict[str, Any]) -> None:
    assert operation(document, "upload")["parameters"] == [
        {"name": "number", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}},
    ]


def test_query_parameters_come_from_the_fields_of_the_query_type(document: dict[str, Any]) -> None:
    assert operation(document, "list_jobs")["parameters"] == [
        {
            "name": "queue",
            "in": "query",
            "required": True,
            "description": "Only this queue.",
            "schema": {"type": "string"},
        },
        {
            "name": "state",
            "in": "query",
            "required": False,
            "schema": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        {
            "name": "order",
            "in": "query",
            "required": False,
            "schema": {"$ref": "#/components/schemas/Order", "default": "newest"},
        },
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "description": "At most this many.",
            "schema": {"type": "integer", "minimum": 1, "maximum": 200, "default": 50},
        },
        {
            "name": "after",
            "in": "query",
            "required": False,
            "description": "A `next` of an earlier page.",
            "schema": {"type": "string"},
        },
    ]
    assert [row["required"] for row in operation(document, "metrics")["parameters"]] == [False]


def test_headers_of_a_route_are_optional_parameters(document: dict[str, Any]) -> None:
    assert operation(document, "submit_job")["parameters"] == [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "The same key gives the same job.",
            "schema": {"type": "string"},
        }
    ]


def test_the_successful_answer_has_its_status_and_type(document: dict[str, Any]) -> None:
    assert operation(document, "submit_job")["responses"]["202"] == {
        "description": "Accepted",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}},
    }
    assert operation(document, "forget")["responses"]["204"] == {"description": "No Content"}
    assert operation(document, "metrics")["responses"]["200"]["content"] == {
        "text/plain": {"schema": {"type": "string"}}
    }


def test_errors_are_grouped_by_status_with_their_codes(document: dict[str, Any]) -> None:
    answers = operation(document, "forget")["responses"]
    assert list(answers) == ["204", "400", "409"]
    assert answers["409"] == {
        "description": "- `conflict`: Conflict\n- `conflict.stale_lease`: Stale lease",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    assert "`egress.refused`" in operation(document, "submit_job")["responses"]["422"]["description"]
    assert "`idempotency.mismatch`" in operation(document, "submit_job")["responses"]["422"]["description"]


@pytest.mark.parametrize(
    ("operation_id", "statuses"),
    [
        ("submit_job", ["202", "400", "401", "403", "409", "413", "422", "429", "503", "507"]),
        ("list_jobs", ["200", "400", "401", "403", "429", "503"]),
        ("show_job", ["200", "400", "401", "403", "404", "429", "503"]),
        ("upload", ["201", "400", "413"]),
    ],
)
def test_errors_of_the_gate_and_the_decoders_are_included(
    document: dict[str, Any], operation_id: str, statuses: list[str]
) -> None:
    assert list(operation(document, operation_id)["responses"]) == statuses


def test_error_answers_name_their_headers(document: dict[str, Any]) -> None:
    answers = operation(document, "show_job")["responses"]
    assert list(answers["401"]["headers"]) == ["WWW-Authenticate"]
    assert list(answers["429"]["headers"]) == list(answers["503"]["headers"]) == ["Retry-After"]


def test_the_scope_is_named_and_public_routes_need_no_key(document: dict[str, Any]) -> None:
    assert operation(document, "submit_job")["security"] == [{"bearer": ["jobs:write"]}, {"basic": ["jobs:write"]}]
    assert operation(document, "metrics")["security"] == []
    assert set(document["components"]["securitySchemes"]) == {"bearer", "basic"}


def test_an_operation_is_named_after_its_handler() -> None:
    def renamed(name: str) -> Handler:
        async def handler(req: Any, resp: Any) -> None: ...

        handler.__name__ = name
        return handler

    assert operation_ids(Route("GET", "/a", renamed("list_jobs"), "s")) == ["list_jobs"]
    assert operation_ids(Route("GET", "/a", partial(list_jobs), "s")) == ["list_jobs"]
    assert operation_ids(
        Route("GET", "/a", renamed("list"), "s", tag="one"),
        Route("GET", "/b", renamed("list"), "s", tag="two"),
        Route("GET", "/c", renamed("other"), "s"),
    ) == ["one_list", "two_list", "other"]
    assert operation_ids(
        Route("GET", "/a/{id}", renamed("list"), "s"),
        Route("POST", "/a/{id}", renamed("list"), "s"),
    ) == ["list_get_a_id", "list_post_a_id"]


def test_operation_ids_do_not_depend_on_the_order_of_the_routes() -> None:
    routes = [Route("GET", f"/{tag}", list_jobs, "s", tag=tag) for tag in ("one", "two")]
    assert sorted(operation_ids(*routes)) == sorted(operation_ids(*reversed(routes)))


def test_types_of_the_same_name_get_different_schemas() -> None:
    class Inner:
        class Job(msgspec.Struct):
            other: int

    routes = [
        Route("GET", "/a", list_jobs, "s", reply=Job),
        Route("GET", "/b", show_job, "s", reply=Inner.Job),
    ]
    document = describe(routes, title="t", version="1", description="d")
    schemathesis.openapi.from_dict(document).validate()
    answers = [item["get"]["responses"]["200"]["content"] for item in document["paths"].values()]
    assert answers[0] != answers[1]
