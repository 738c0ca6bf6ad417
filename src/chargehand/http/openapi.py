"""Generate the API description, OpenAPI 3.1, from the same routes that serve the requests, so that they cannot disagree."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from chargehand.errors import (
    BadRequest,
    ChargehandError,
    Forbidden,
    InvalidField,
    StoreFull,
    StoreUnavailable,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
)
from chargehand.http.problems import PROBLEM_TYPE, Problem, write_problem
from chargehand.http.route import JSON, Handler, Route

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"
_FIELD = re.compile(r"\{(\w+)(?::(\w+)(?:\(.*?\))?)?\}")  # {name}, {name:converter}, {name:converter(arguments)}
_CONVERTERS: dict[str, Schema] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "uuid": {"type": "string", "format": "uuid"},
    "dt": {"type": "string", "format": "date-time"},
}
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The key as a bearer token."},
    "basic": {"type": "http", "scheme": "basic", "description": "For callers that cannot send a bearer token."},
}
# In protocols that are not ours: every one has this member, which holds a text or an object.
_ERROR: Schema = {"type": "object", "properties": {"error": {}}, "required": ["error"]}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait, when known.", "schema": {"type": "integer"}}}
_REFUSAL_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "The scheme to use.", "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}


def describe(routes: Iterable[Route], *, title: str, version: str, description: str) -> dict[str, Any]:
    shown = [route for route in routes if not route.hidden]
    # One call for all types, so that msgspec gives types of the same name different ones in every $ref.
    kinds = [kind for route in shown for kind in (route.request, route.query, route.reply)]
    (problem, *schemas), components = msgspec.json.schema_components([Problem, *kinds], ref_template=_REF)

    paths: dict[str, dict[str, Any]] = {}
    rows = zip(shown, _operation_ids(shown), schemas[::3], schemas[1::3], schemas[2::3], strict=True)
    for route, operation_id, request, query, reply in rows:
        operation: dict[str, Any] = {"operationId": operation_id, "summary": route.summary, "tags": [route.tag]}
        if route.description:
            operation["description"] = route.description
        scopes = [route.scope] if route.scope else []
        operation["security"] = [] if route.scope is None else [{scheme: scopes} for scheme in _SECURITY]
        operation["parameters"] = [*_path_parameters(route), *_query_parameters(query, components), *_headers(route)]
        if route.request is not None:
            operation["requestBody"] = {"required": True, "content": _content(route.request, request)}
        operation["responses"] = {**_good_answers(route, reply), **_refusals(route, problem)}
        paths.setdefault(_FIELD.sub(r"{\1}", route.path), {})[route.method.lower()] = operation

    document = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in shown)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY},
    }
    # Defaults are Python values such as tuples; encoding and decoding makes them plain JSON.
    return msgspec.json.decode(msgspec.json.encode(document), type=dict[str, Any])


def _operation_ids(routes: list[Route]) -> Iterator[str]:
    """Yield the handlers' names; if that is ambiguous prefix the tag, and if that is too append method and path."""
    candidates = []
    owners: dict[str, set[int]] = defaultdict(set)
    for index, route in enumerate(routes):
        name = _word(_name(route.handler))
        names = (name, f"{_word(route.tag)}_{name}", f"{name}_{route.method.lower()}_{_word(route.path)}")
        candidates.append(names)
        for candidate in names:
            owners[candidate].add(index)
    for names in candidates:
        yield next((name for name in names if len(owners[name]) == 1), names[-1])


def _name(handler: Handler) -> str:
    handler = getattr(handler, "func", handler)  # functools.partial has no name of its own
    return getattr(handler, "__name__", type(handler).__name__)


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")


def _path_parameters(route: Route) -> Iterator[dict[str, Any]]:
    for name, converter in _FIELD.findall(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": _CONVERTERS.get(converter, {"type": "string"})}


def _query_parameters(query: Schema, components: dict[str, Schema]) -> Iterator[dict[str, Any]]:
    struct = components[query["$ref"].rpartition("/")[2]] if "$ref" in query else {}
    for name, field in struct.get("properties", {}).items():
        schema = _without_null(field)
        parameter = {"name": name, "in": "query", "required": name in struct["required"]}
        if description := schema.pop("description", None):
            parameter["description"] = description
        yield {**parameter, "schema": schema}


def _without_null(schema: Schema) -> Schema:
    """Return a field's schema without null: a query string expresses null by leaving the name out."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    kept = {key: value for key, value in schema.items() if key != "anyOf" and (key, value) != ("default", None)}
    if len(kinds) == 1:
        return {**kinds[0], **kept}
    return {"anyOf": kinds, **kept} if kinds else kept


def _headers(route: Route) -> Iterator[dict[str, Any]]:
    for name, meaning in route.headers.items():
        yield {"name": name, "in": "header", "required": False, "description": meaning, "schema": {"type": "string"}}


def _content(kind: Any, schema: Schema, media: str = JSON) -> dict[str, Any]:
    if kind is bytes:  # raw bytes: msgspec's schema would say base64, which is true only inside JSON
        return {"application/octet-stream" if media == JSON else media: {}}
    return {media: {"schema": schema}}


def _good_answers(route: Route, schema: Schema) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.reply is not None:
        answer["content"] = _content(route.reply, schema, route.reply_media)
    elif route.reply_media != JSON:
        answer["content"] = _content(str, {"type": "string"}, route.reply_media)
    nothing = {"204": {"description": route.or_nothing}} if route.or_nothing else {}
    return {str(route.status): answer, **nothing}


def _refusals(route: Route, problem: Schema) -> dict[str, Any]:
    by_status: dict[int, list[type[ChargehandError]]] = defaultdict(list)
    for error in dict.fromkeys((*_implied(route), *route.errors)):
        by_status[error.status].append(error)
    answers = {}
    for status, errors in sorted(by_status.items()):
        answer: dict[str, Any] = {"description": "\n".join(f"- `{error.code}`: {error.title}" for error in errors)}
        if status in _REFUSAL_HEADERS:
            answer["headers"] = _REFUSAL_HEADERS[status]
        content = {PROBLEM_TYPE: problem} if route.error_writer is write_problem else {JSON: _ERROR}
        answers[str(status)] = {**answer, "content": {media: {"schema": schema} for media, schema in content.items()}}
    return answers


def _implied(route: Route) -> Iterator[type[ChargehandError]]:
    """Yield the errors that the gate, the body reader and the decoders may raise before the handler runs."""
    if route.request is not None:
        yield from (BadRequest, InvalidField, TooLarge)
    if route.query is not None or route.headers or "{" in route.path:
        yield InvalidField
    if route.scope is not None and route.method != "GET":
        yield StoreFull
    if route.scope is not None:
        yield from (Unauthenticated, Forbidden, TooManyRequests, StoreUnavailable)
