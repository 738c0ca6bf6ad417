"""Validate settings, with messages that name the setting and say what is allowed."""

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from ipaddress import ip_network
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from chargehand.config.settings import Config, Section, host_and_port, wrap


def allowed(kind: Any) -> str:
    """Describe in words what a setting of this type may be."""
    container, arguments = get_origin(kind), get_args(kind)
    if container is Literal:
        return f"one of {', '.join(arguments)}"
    if container is dict:
        return "a table of tables (in the environment: JSON)"
    if container is tuple:
        if hasattr(arguments[0], "short_form"):
            return f"a list of {arguments[0].short_form}s or an array of tables"
        return "a list of strings" if bare(arguments[0]) is str else "an array of tables (in the environment: JSON)"
    if container is Annotated:
        meta = kind.__metadata__[0]
        return meta.description or f"a {'whole ' * (bare(kind) is int)}number from {meta.ge} to {meta.le}"
    return "true or false" if kind is bool else "text"


def problems(value: Any, kind: Any, name: str) -> Iterator[str]:
    # msgspec finds the same errors, but its messages neither name our settings nor the whole range.
    container, arguments = get_origin(kind), get_args(kind)
    if container is None and issubclass(kind, Section):
        yield from _table_problems(value, kind, name)
    elif container is tuple and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from problems(item, arguments[0], f"{name}[{index}]")
    elif container is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from problems(key, arguments[0], f"a name in {name}")
            yield from problems(item, arguments[1], f"{name}.{key}")
    else:
        try:
            msgspec.convert(value, kind, dec_hook=wrap)
        except msgspec.ValidationError:
            yield f"{name} must be {allowed(kind)}{_shown(value, kind)}"


def _table_problems(value: Any, kind: type[Section], name: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name} must be a table"
        return
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in value:
        if key not in fields:
            yield f"{name}.{key} is not a setting{hint(key, fields)}"
    for field in fields.values():
        if field.name in value:
            yield from problems(value[field.name], field.type, f"{name}.{field.name}")
        elif field.required:
            yield f"{name}.{field.name} is missing"


def _shown(value: Any, kind: Any) -> str:
    # Show only values that cannot be secrets: a token pasted in place of its hash must not be logged.
    harmless = bare(kind) in (int, float, bool) or get_origin(kind) is Literal
    return f", not {value!r}" if harmless else ""


def rules(config: Config) -> Iterator[tuple[str, bool, str]]:
    """Yield the rules that types cannot express: the setting, whether it is valid, and the message if not."""
    server, store, engine, webhooks, auth = config.server, config.store, config.engine, config.webhooks, config.auth

    shape = "HOST:PORT or [IPV6]:PORT with a port from 0 to 65535"
    yield "server.listen", succeeds(host_and_port, server.listen), f"must be {shape}, not {server.listen!r}"
    streams = config.tasks.grpc_listen
    problem = f"must be {shape}, or empty, not {streams!r}"
    yield "tasks.grpc_listen", not streams or succeeds(host_and_port, streams), problem
    shared = server.processes == 1 or not config.store_url.startswith("sqlite:")
    problem = "must be 1 with SQLite, whose file only one process can use; for more, set store.url to a PostgreSQL"
    yield "server.processes", shared, problem
    known_store = not store.url or bool(re.match(r"(sqlite:///|postgresql://).", store.url.reveal()))
    yield "store.url", known_store, "must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE, or empty"

    short_enough = engine.lease_seconds <= engine.max_lease_seconds
    yield "engine.lease_seconds", short_enough, f"must not exceed engine.max_lease_seconds, {engine.max_lease_seconds}"
    tasks = config.tasks
    in_order = tasks.result_webhook_base_backoff_seconds <= tasks.result_webhook_max_backoff_seconds
    longest = tasks.result_webhook_max_backoff_seconds
    problem = f"must not exceed tasks.result_webhook_max_backoff_seconds, {longest}"
    yield "tasks.result_webhook_base_backoff_seconds", in_order, problem
    for section, backoff in (("engine", engine), ("webhooks", webhooks), ("tasks", tasks)):
        longest = backoff.backoff_max_seconds
        in_order = backoff.backoff_base_seconds <= longest
        yield f"{section}.backoff_base_seconds", in_order, f"must not exceed {section}.backoff_max_seconds, {longest}"
    in_time = webhooks.timeout_seconds <= webhooks.give_up_seconds
    yield "webhooks.timeout_seconds", in_time, f"must not exceed webhooks.give_up_seconds, {webhooks.give_up_seconds}"

    for key, networks in (("allow_networks", webhooks.allow_networks), ("deny_networks", webhooks.deny_networks)):
        for index, network in enumerate(networks):
            problem = f"must be a network such as 10.20.0.0/16, with no bits set beyond its prefix, not {network!r}"
            yield f"webhooks.{key}[{index}]", succeeds(ip_network, network), problem

    for tenant, secrets in webhooks.tenants.items():
        yield f"webhooks.tenants.{tenant}.secret", bool(secrets.secret), "must not be empty"
    paired = bool(webhooks.secret or not webhooks.previous_secret)
    yield "webhooks.previous_secret", paired, "needs webhooks.secret"
    for key, location in (("tls_certificate", server.tls_certificate), ("tls_client_ca", server.tls_client_ca)):
        paired = not location or bool(server.tls_certificate and server.tls_key)
        yield f"server.{key}", paired, "needs server.tls_certificate and server.tls_key"
    paired = not server.tls_key or bool(server.tls_certificate)
    yield "server.tls_key", paired, "needs server.tls_certificate"
    long_enough = not config.provisioning.key or len(config.provisioning.key.reveal().encode()) >= 32
    yield "provisioning.key", long_enough, "must have at least 32 bytes"
    paired = bool(config.provisioning.webhook_secret or not config.provisioning.previous_webhook_secret)
    yield "provisioning.previous_webhook_secret", paired, "needs provisioning.webhook_secret"

    names = [each.name for each in config.inference.targets]
    for index, name in enumerate(names):
        unique = not name or name not in names[:index]
        yield f"inference.targets[{index}].name", unique, f"must be unique: {name!r} is taken"
    long_enough = not auth.jwt_secret or len(auth.jwt_secret.reveal().encode()) >= 32
    yield "auth.jwt_secret", long_enough, "must have at least 32 bytes"
    yield "auth.jwks_file", not (auth.jwks_file and auth.jwks_url), "excludes auth.jwks_url: set one of them"
    for key, location in (("auth.jwks_url", auth.jwks_url), ("auth.jwks_file", auth.jwks_file)):
        complete = not location or bool(auth.jwt_issuer and auth.jwt_audience)
        yield key, complete, "needs auth.jwt_issuer and auth.jwt_audience"
    for index, user in enumerate(auth.users):
        hashed = user.password_hash.reveal().startswith("scrypt:")
        yield f"auth.users[{index}].password_hash", hashed, "must begin with scrypt:"
    for key, names in (("tokens", [each.name for each in auth.tokens]), ("users", [each.name for each in auth.users])):
        for index, name in enumerate(names):
            yield f"auth.{key}[{index}].name", name not in names[:index], f"must be unique: {name!r} is taken"


def hint(name: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def succeeds(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
