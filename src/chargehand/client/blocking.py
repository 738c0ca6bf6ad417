"""The same calls for programs without a loop: scripts, Django, Flask.

    with Client("http://127.0.0.1:8484", token="…") as client:
        print(client.chat("llama3.2", "Why is the sky blue?").text)
        for token in client.stream(job_id):
            print(token.text, end="")

There is one implementation, that of `AsyncClient`: here each of its calls is named once more, and waits. A line takes over parameters
and type of the call that it names, so that type checkers and editors know both clients equally well, and a test compares the
two lists of names. The loop that does the work is a thread's (`background.py`): one client may be shared by any number of threads,
and is at home in a forked process too.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from chargehand.client.client import AsyncClient
from chargehand.client.deliveries import Deliveries
from chargehand.client.engine import Engine
from chargehand.client.provisioning import Provisioning
from chargehand.client.tasks import Tasks
from chargehand.client.transport.background import Background

P = ParamSpec("P")
T = TypeVar("T")
Behind = TypeVar("Behind")
Behind_co = TypeVar("Behind_co", covariant=True)  # a client is an Inference, too


class Blocking(Generic[Behind_co]):
    """The part of a client whose calls are made in the background."""

    def __init__(self, behind: Behind_co, background: Background) -> None:
        self._behind = behind
        self._background = background


def blocking(
    call: Callable[Concatenate[Behind, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Behind], P], T]:
    @functools.wraps(call)
    def wait(self: Blocking[Behind], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._background.run(lambda: call(self._behind, *args, **kwargs))

    return wait


def iterating(
    call: Callable[Concatenate[Behind, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Blocking[Behind], P], Iterator[T]]:
    @functools.wraps(call)
    def iterate(self: Blocking[Behind], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._background.iterate(lambda: call(self._behind, *args, **kwargs))

    return iterate


class BlockingTasks(Blocking[Tasks]):
    create = blocking(Tasks.create)
    create_many = blocking(Tasks.create_many)
    get = blocking(Tasks.get)
    find = iterating(Tasks.find)
    result = blocking(Tasks.result)
    wait = blocking(Tasks.wait)
    events = iterating(Tasks.events)
    watch = iterating(Tasks.watch)
    artifact = blocking(Tasks.artifact)
    cancel = blocking(Tasks.cancel)
    claim = blocking(Tasks.claim)
    claim_many = blocking(Tasks.claim_many)
    heartbeat = blocking(Tasks.heartbeat)
    abandon = blocking(Tasks.abandon)
    nack = blocking(Tasks.nack)
    complete = blocking(Tasks.complete)
    fail = blocking(Tasks.fail)
    submit = blocking(Tasks.submit)
    submit_many = blocking(Tasks.submit_many)
    progress = blocking(Tasks.progress)
    subscribe = blocking(Tasks.subscribe)
    renew = blocking(Tasks.renew)
    unsubscribe = blocking(Tasks.unsubscribe)


class BlockingEngine(Blocking[Engine]):
    submit = blocking(Engine.submit)
    job = blocking(Engine.job)
    jobs = iterating(Engine.jobs)
    wait = blocking(Engine.wait)
    events = iterating(Engine.events)
    watch = iterating(Engine.watch)
    cancel = blocking(Engine.cancel)
    requeue = blocking(Engine.requeue)
    claim = blocking(Engine.claim)
    beat = blocking(Engine.beat)
    advance = blocking(Engine.advance)
    note = blocking(Engine.note)
    succeed = blocking(Engine.succeed)
    retry = blocking(Engine.retry)
    park = blocking(Engine.park)
    fail = blocking(Engine.fail)
    queues = blocking(Engine.queues)
    set_queue = blocking(Engine.set_queue)


class BlockingDeliveries(Blocking[Deliveries]):
    find = iterating(Deliveries.find)
    get = blocking(Deliveries.get)
    replay = blocking(Deliveries.replay)
    endpoints = iterating(Deliveries.endpoints)
    endpoint = blocking(Deliveries.endpoint)
    replay_all = blocking(Deliveries.replay_all)
    pause = blocking(Deliveries.pause)
    resume = blocking(Deliveries.resume)


class BlockingProvisioning(Blocking[Provisioning]):
    register = blocking(Provisioning.register)
    server = blocking(Provisioning.server)
    servers = iterating(Provisioning.servers)
    remove_server = blocking(Provisioning.remove_server)
    probe = blocking(Provisioning.probe)
    validate = blocking(Provisioning.validate)
    recipe_schema = blocking(Provisioning.recipe_schema)
    submit = blocking(Provisioning.submit)
    job = blocking(Provisioning.job)
    jobs = iterating(Provisioning.jobs)
    wait = blocking(Provisioning.wait)
    cancel = blocking(Provisioning.cancel)
    retry = blocking(Provisioning.retry)
    events = iterating(Provisioning.events)
    watch = iterating(Provisioning.watch)


class Client(Blocking[AsyncClient]):
    """Without arguments: CHARGEHAND_URL and CHARGEHAND_TOKEN, else the server on this machine."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0, retries: int = 4
    ) -> None:
        behind = AsyncClient(url, token, timeout=timeout, retries=retries)
        super().__init__(behind, Background(behind.close))
        self.url = self._behind.url
        self.tasks = BlockingTasks(self._behind.tasks, self._background)
        self.engine = BlockingEngine(self._behind.engine, self._background)
        self.deliveries = BlockingDeliveries(self._behind.deliveries, self._background)
        self.provisioning = BlockingProvisioning(self._behind.provisioning, self._background)

    submit = blocking(AsyncClient.submit)
    chat = blocking(AsyncClient.chat)
    job = blocking(AsyncClient.job)
    jobs = iterating(AsyncClient.jobs)
    wait = blocking(AsyncClient.wait)
    stream = iterating(AsyncClient.stream)
    events = iterating(AsyncClient.events)
    watch = iterating(AsyncClient.watch)
    cancel = blocking(AsyncClient.cancel)
    retry = blocking(AsyncClient.retry)
    artifact = blocking(AsyncClient.artifact)
    targets = blocking(AsyncClient.targets)

    def close(self) -> None:
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
