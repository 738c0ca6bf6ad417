"""The client for programs without an event loop: scripts, Django, Flask.

    with Client("http://127.0.0.1:8484", token="…") as client:
        print(client.chat("llama3.2", "Why is the sky blue?").text)
        for token in client.stream(job_id):
            print(token.text, end="")

Each line here names a call of `AsyncClient`, runs it in a loop in a background thread (`background.py`) and waits for it. It keeps the
parameters and types of that call for type checkers and editors, and a test compares the two lists of calls. Any number of threads
may share a client, and a forked process may go on using it.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from chargehand.client.client import AsyncClient
from chargehand.client.deliveries import DeliveryCalls
from chargehand.client.engine import EngineCalls
from chargehand.client.flows import FlowCalls
from chargehand.client.provisioning import ProvisioningCalls
from chargehand.client.schedules import ScheduleCalls, TopicCalls
from chargehand.client.tasks import TaskCalls
from chargehand.client.transport.background import Background

P = ParamSpec("P")
T = TypeVar("T")
Behind = TypeVar("Behind")
Behind_co = TypeVar("Behind_co", covariant=True)  # an AsyncClient is an InferenceCalls too


class Blocking(Generic[Behind_co]):
    """A part of a client whose calls run in the background."""

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


class BlockingTasks(Blocking[TaskCalls]):
    create = blocking(TaskCalls.create)
    create_many = blocking(TaskCalls.create_many)
    get = blocking(TaskCalls.get)
    find = iterating(TaskCalls.find)
    result = blocking(TaskCalls.result)
    wait = blocking(TaskCalls.wait)
    events = iterating(TaskCalls.events)
    watch = iterating(TaskCalls.watch)
    artifact = blocking(TaskCalls.artifact)
    cancel = blocking(TaskCalls.cancel)
    claim = blocking(TaskCalls.claim)
    claim_many = blocking(TaskCalls.claim_many)
    heartbeat = blocking(TaskCalls.heartbeat)
    abandon = blocking(TaskCalls.abandon)
    nack = blocking(TaskCalls.nack)
    complete = blocking(TaskCalls.complete)
    fail = blocking(TaskCalls.fail)
    submit = blocking(TaskCalls.submit)
    submit_many = blocking(TaskCalls.submit_many)
    progress = blocking(TaskCalls.progress)
    subscribe = blocking(TaskCalls.subscribe)
    renew = blocking(TaskCalls.renew)
    unsubscribe = blocking(TaskCalls.unsubscribe)


class BlockingSchedules(Blocking[ScheduleCalls]):
    put = blocking(ScheduleCalls.put)
    get = blocking(ScheduleCalls.get)
    find = blocking(ScheduleCalls.find)
    pause = blocking(ScheduleCalls.pause)
    resume = blocking(ScheduleCalls.resume)
    run = blocking(ScheduleCalls.run)
    remove = blocking(ScheduleCalls.remove)


class BlockingTopics(Blocking[TopicCalls]):
    put = blocking(TopicCalls.put)
    get = blocking(TopicCalls.get)
    find = blocking(TopicCalls.find)
    remove = blocking(TopicCalls.remove)


class BlockingEngine(Blocking[EngineCalls]):
    submit = blocking(EngineCalls.submit)
    job = blocking(EngineCalls.job)
    jobs = iterating(EngineCalls.jobs)
    wait = blocking(EngineCalls.wait)
    events = iterating(EngineCalls.events)
    watch = iterating(EngineCalls.watch)
    cancel = blocking(EngineCalls.cancel)
    requeue = blocking(EngineCalls.requeue)
    claim = blocking(EngineCalls.claim)
    beat = blocking(EngineCalls.beat)
    advance = blocking(EngineCalls.advance)
    note = blocking(EngineCalls.note)
    succeed = blocking(EngineCalls.succeed)
    retry = blocking(EngineCalls.retry)
    park = blocking(EngineCalls.park)
    fail = blocking(EngineCalls.fail)
    queues = blocking(EngineCalls.queues)
    set_queue = blocking(EngineCalls.set_queue)


class BlockingFlows(Blocking[FlowCalls]):
    submit = blocking(FlowCalls.submit)
    get = blocking(FlowCalls.get)
    steps = iterating(FlowCalls.steps)
    find = iterating(FlowCalls.find)
    wait = blocking(FlowCalls.wait)
    cancel = blocking(FlowCalls.cancel)
    retry = blocking(FlowCalls.retry)
    events = iterating(FlowCalls.events)
    watch = iterating(FlowCalls.watch)


class BlockingDeliveries(Blocking[DeliveryCalls]):
    find = iterating(DeliveryCalls.find)
    get = blocking(DeliveryCalls.get)
    replay = blocking(DeliveryCalls.replay)
    endpoints = iterating(DeliveryCalls.endpoints)
    endpoint = blocking(DeliveryCalls.endpoint)
    replay_all = blocking(DeliveryCalls.replay_all)
    pause = blocking(DeliveryCalls.pause)
    resume = blocking(DeliveryCalls.resume)


class BlockingProvisioning(Blocking[ProvisioningCalls]):
    register = blocking(ProvisioningCalls.register)
    server = blocking(ProvisioningCalls.server)
    servers = iterating(ProvisioningCalls.servers)
    remove_server = blocking(ProvisioningCalls.remove_server)
    probe = blocking(ProvisioningCalls.probe)
    validate = blocking(ProvisioningCalls.validate)
    recipe_schema = blocking(ProvisioningCalls.recipe_schema)
    submit = blocking(ProvisioningCalls.submit)
    job = blocking(ProvisioningCalls.job)
    jobs = iterating(ProvisioningCalls.jobs)
    wait = blocking(ProvisioningCalls.wait)
    cancel = blocking(ProvisioningCalls.cancel)
    retry = blocking(ProvisioningCalls.retry)
    events = iterating(ProvisioningCalls.events)
    watch = iterating(ProvisioningCalls.watch)


class Client(Blocking[AsyncClient]):
    """Without arguments: CHARGEHAND_URL and CHARGEHAND_TOKEN, else the server on this machine."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0, retries: int = 4
    ) -> None:
        behind = AsyncClient(url, token, timeout=timeout, retries=retries)
        super().__init__(behind, Background(behind.close))
        self.url = self._behind.url
        self.tasks = BlockingTasks(self._behind.tasks, self._background)
        self.schedules = BlockingSchedules(self._behind.schedules, self._background)
        self.topics = BlockingTopics(self._behind.topics, self._background)
        self.engine = BlockingEngine(self._behind.engine, self._background)
        self.flows = BlockingFlows(self._behind.flows, self._background)
        self.deliveries = BlockingDeliveries(self._behind.deliveries, self._background)
        self.provisioning = BlockingProvisioning(self._behind.provisioning, self._background)

    submit = blocking(AsyncClient.submit)
    chat = blocking(AsyncClient.chat)
    job = blocking(AsyncClient.job)
    jobs = iterating(AsyncClient.jobs)
    wait = blocking(AsyncClient.wait)
    stream = iterating(AsyncClient.stream)
    follow = iterating(AsyncClient.follow)
    events = iterating(AsyncClient.events)
    watch = iterating(AsyncClient.watch)
    cancel = blocking(AsyncClient.cancel)
    cancel_batch = blocking(AsyncClient.cancel_batch)
    retry = blocking(AsyncClient.retry)
    artifact = blocking(AsyncClient.artifact)
    targets = blocking(AsyncClient.targets)

    @property
    def may_have_changed(self) -> bool:
        """Whether the server may have done anything but reads for this client."""
        return self._behind.may_have_changed

    def close(self) -> None:
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
