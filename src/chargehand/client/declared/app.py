"""Tasks that are declared once, as functions, and sent by calling them:

    app = App("http://127.0.0.1:8484", token="…")

    @app.task(retry=3)
    def greet(name: str, times: int = 1) -> str:
        return f"Hello, {name}! " * times

    greet("fox")                              # calls it here
    sent = greet.send(name="fox", times=2)    # has a worker call it
    print(sent.result(timeout=60))

    app.worker(concurrency=4).run()           # or: chargehand worker shop.tasks:app

`asend` and `aresult` are `send` and `result` for coroutines. Type checkers know the arguments and the result.
"""

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from msgspec.structs import asdict

from chargehand.client.blocking import Client
from chargehand.client.client import AsyncClient
from chargehand.client.declared.batches import BatchOf
from chargehand.client.declared.declaration import Every, declaration
from chargehand.client.declared.eager import arun_eagerly, run_eagerly
from chargehand.client.declared.eager_flow import arun_flow_eagerly, run_flow_eagerly
from chargehand.client.declared.flows import DeclaredFlow
from chargehand.client.declared.graph import SentSteps
from chargehand.client.declared.middleware import Middleware
from chargehand.client.declared.policies import set_policies
from chargehand.client.declared.retries import Retries
from chargehand.client.declared.sent import SentFlow, SentTask
from chargehand.client.declared.task import BatchTask, DeclaredTask, Sender
from chargehand.client.errors import refused
from chargehand.client.types.engine import RateOfStarts
from chargehand.client.types.flows import FlowOptions
from chargehand.client.types.schedules import KeyPolicy
from chargehand.client.types.tasks import Created, NewTask, Result, Task
from chargehand.client.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Added = TypeVar("Added", bound=Sender[Any])


class TaskOptions(TypedDict, total=False):
    """What a decorator may declare. `queue` is the command whose tasks these are; without it, the name of the function."""

    queue: str
    retry: int | Retries
    priority: int
    lease_seconds: float
    timeout: float
    soft_timeout: float
    max_running: int
    rate: RateOfStarts
    per_key: KeyPolicy
    every: str | Every


class TaskDecorator(Protocol):
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> DeclaredTask[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> DeclaredTask[P, R, R]: ...


class BatchDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[[list[T]], Coroutine[Any, Any, None]], /) -> BatchTask[T, None]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, Sequence[R | Exception]]], /
    ) -> BatchTask[T, R]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], None], /) -> BatchTask[T, None]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Sequence[R | Exception]], /) -> BatchTask[T, R]: ...


class App:
    """Without arguments: CHARGEHAND_URL and CHARGEHAND_TOKEN, else the server on this machine."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, middleware: Sequence[Middleware] = ()
    ) -> None:
        self.middleware = tuple(middleware)
        self.tasks: dict[str, Sender[Any]] = {}  # by command, in lower case
        self._url, self._token = url, token
        self._client: Client | None = None
        self._async_client: AsyncClient | None = None
        self._eager = 0
        self._lock = threading.Lock()

    # declaring

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> DeclaredTask[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> DeclaredTask[P, R, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Declare a function as a task."""

        def declare(function: Callable[..., Any]) -> DeclaredTask[Any, Any, Any]:
            return self._add(DeclaredTask(self, function, declaration(function.__name__, **options)))

        return declare if function is None else declare(function)

    def batch(self, size: int, *, wait_seconds: float = 0.1, **options: Unpack[TaskOptions]) -> BatchDecorator:
        """Declare a function that gets the payloads of up to `size` tasks at once, and returns as many outcomes: results or exceptions.

        It begins with fewer when the first has waited for `wait_seconds`. What it raises holds for all; None is that all are done.
        """
        of = BatchOf(size=size, wait_seconds=wait_seconds)

        def declare(function: Callable[..., Any]) -> BatchTask[Any, Any]:
            return self._add(BatchTask(self, function, declaration(function.__name__, **options), of))

        return declare

    def _add(self, task: Added) -> Added:
        name = task.command.strip().lower()
        if (other := self.tasks.get(name)) is not None:
            where = f"{other.function.__module__}.{other.function.__qualname__}"
            raise ValueError(
                f"queue: {task.command!r} is declared already, by {where}; upper and lower case are the same here"
            )
        self.tasks[name] = task
        return task

    # sending

    @property
    def server(self) -> tuple[str | None, str | None]:
        """Its URL and the token, as they were given."""
        return self._url, self._token

    @property
    def client(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(self._url, self._token)
            return self._client

    @property
    def async_client(self) -> AsyncClient:
        """It belongs to one loop at a time."""
        if self._async_client is None:
            self._async_client = AsyncClient(self._url, self._token)
        return self._async_client

    def connect(self, url: str | None = None, token: str | None = None) -> None:
        """From now on use this server: for programs that learn it late, and for tests."""
        self.close()
        self._url, self._token, self._async_client = url, token, None

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        client, self._async_client = self._async_client, None
        if client is not None:
            await client.close()
        self.close()

    # for declared tasks

    def send(self, task: Sender[R], new: NewTask) -> SentTask[R]:
        new = self.prepared(task, new)
        if self._eager:
            return self._ended(task, run_eagerly(task.handler(), new))
        return task.sent(self.client.tasks.create(**asdict(new)).id)

    async def asend(self, task: Sender[R], new: NewTask) -> SentTask[R]:
        new = self.prepared(task, new)
        if self._eager:
            return self._ended(task, await arun_eagerly(task.handler(), new))
        return task.sent((await self.async_client.tasks.create(**asdict(new))).id)

    def send_many(self, task: Sender[R], new_tasks: Sequence[NewTask]) -> list[SentTask[R]]:
        if self._eager:
            return [self.send(task, new) for new in new_tasks]
        made = self.client.tasks.create_many([self.prepared(task, new) for new in new_tasks])
        return [task.sent(task_id) for task_id in _ids(made)]

    async def asend_many(self, task: Sender[R], new_tasks: Sequence[NewTask]) -> list[SentTask[R]]:
        if self._eager:
            return [await self.asend(task, new) for new in new_tasks]
        made = await self.async_client.tasks.create_many([self.prepared(task, new) for new in new_tasks])
        return [task.sent(task_id) for task_id in _ids(made)]

    def send_flow(self, flow: DeclaredFlow[R], **options: Unpack[FlowOptions]) -> SentFlow[R]:
        """Send the steps of a flow; none, if the server refuses one."""
        graph = SentSteps(flow)
        if self._eager:
            ended = run_flow_eagerly(graph)
            return SentFlow(self, ended[0].id, graph.ends(flow), ended)
        return SentFlow(self, self.client.flows.submit(graph.new_steps(), **options).job_id, graph.ends(flow))

    async def asend_flow(self, flow: DeclaredFlow[R], **options: Unpack[FlowOptions]) -> SentFlow[R]:
        graph = SentSteps(flow)
        if self._eager:
            ended = await arun_flow_eagerly(graph)
            return SentFlow(self, ended[0].id, graph.ends(flow), ended)
        made = await self.async_client.flows.submit(graph.new_steps(), **options)
        return SentFlow(self, made.job_id, graph.ends(flow))

    def sent_flow(self, flow: DeclaredFlow[R], flow_id: str) -> SentFlow[R]:
        """A flow like this one that was sent under this id, to wait for its result in any process."""
        return SentFlow(self, flow_id, SentSteps(flow).ends(flow))

    def prepared(self, task: Sender[Any], new: NewTask) -> NewTask:
        """The task as it is sent: after the middleware."""
        if new.command != task.command:
            raise ValueError(f"this is a task for {new.command!r}, and not for {task.command!r}")
        for each in self.middleware:
            new = each.before_send(new)
        return new

    def _ended(self, task: Sender[R], ended: tuple[Task, Result]) -> SentTask[R]:
        return SentTask(self, ended[0].id, task.returns, ended)

    # for tests

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Until the end of the block, `send` runs the function at once, with the checks that both sides make, and needs no server.

        `Fail` and `Retry` are what they are to a worker; any other error is raised by `send`.
        """
        self._eager += 1
        try:
            yield
        finally:
            self._eager -= 1

    # working

    def worker(self, queues: Sequence[str] = (), *, overwrite: bool = False, **options: Any) -> Worker:
        """A worker for the declared tasks, or for those of these queues. `options` are those of `Worker`.

        `overwrite`: what is declared replaces what the server has under the name of the task (policies.py).
        """
        chosen = self._chosen(queues)
        _check_places(chosen, options.get("concurrency", 1), options.get("processes", 0))
        worker = AppWorker(self, chosen, overwrite, options)
        for task in chosen:
            worker.task(task.command, **task.declared.for_worker)(task.handler().for_worker())
        return worker

    def _chosen(self, queues: Sequence[str]) -> list[Sender[Any]]:
        names = [queue.strip().lower() for queue in queues] or list(self.tasks)
        if unknown := [name for name in names if name not in self.tasks]:
            raise ValueError(f"no task is declared for {unknown[0]!r}; there are {', '.join(self.tasks) or 'none'}")
        return [self.tasks[name] for name in names]


class AppWorker(Worker):
    """A worker that tells the server first what was declared."""

    def __init__(self, app: App, tasks: Sequence[Sender[Any]], overwrite: bool, options: dict[str, Any]) -> None:
        super().__init__(*app.server, **options)
        self._app = app
        self._tasks = tasks
        self._overwrite = overwrite

    async def serve(self) -> None:
        async with AsyncClient(*self._app.server) as client:
            await set_policies(client, [task.declared for task in self._tasks], self._overwrite)
        await super().serve()


def _check_places(tasks: Sequence[Sender[Any]], concurrency: int, processes: int) -> None:
    for task in tasks:
        if isinstance(task, BatchTask) and processes:
            raise ValueError(f"{task.command} takes many tasks at once, and a process has one: leave out processes")
        if isinstance(task, BatchTask) and task.of.size > concurrency:
            raise ValueError(f"{task.command} takes {task.of.size} tasks at once: concurrency must be as much or more")


def _ids(made: Sequence[Created]) -> list[str]:
    wrong = [(index, each) for index, each in enumerate(made) if each.task is None]
    if wrong:
        index, first = wrong[0]
        raise refused(
            400, f"{len(wrong)} of {len(made)} tasks were refused", f"[{index}]: {first.detail or first.error}"
        )
    return [each.task.id for each in made if each.task is not None]
