"""One attempt at one job: load -> generate -> outcome.

A state is written only when it was seen: `loading` when the request to load is on its way, `working` when the model is in memory
and the request is on its way, `done` when the target said so.
"""

import asyncio
import time
from collections.abc import Mapping

import aiohttp
import msgspec

from chargehand.config import InferenceConfig, ModelConfig
from chargehand.doors.inference import artifacts
from chargehand.doors.inference.errors import in_shape_of
from chargehand.doors.inference.failures import (
    BUSY_MAX_SECONDS,
    BUSY_SECONDS,
    CLOUD_SECONDS,
    FailureAction,
    FailureRow,
    Observed,
    Symptom,
    classify,
)
from chargehand.doors.inference.names import canonical, is_cloud
from chargehand.doors.inference.relay import passed_on
from chargehand.doors.inference.request import StoredRequest, decode_request, pinned, preload
from chargehand.doors.inference.residency import Ask, Load
from chargehand.doors.inference.running import HeldCall, RunningAttempts
from chargehand.doors.inference.scheduler import TargetSlot
from chargehand.doors.inference.states import StateWriter
from chargehand.doors.inference.stream import AnswerStream, Head
from chargehand.doors.inference.target_http import Gone, Small, TargetUnreachable, Unfit, read_whole
from chargehand.doors.inference.views import AttemptData, AttemptEvidence
from chargehand.doors.inference.wire import ModelAnswer, error_text, read_answer
from chargehand.engine.job import Job
from chargehand.engine.moves import Broke
from chargehand.engine.runner import Done, Hand, Outcome, Parked
from chargehand.errors import StoreError
from chargehand.files import Files
from chargehand.observability.logs import get_logger
from chargehand.observability.metrics import Metrics

ERROR_BYTES = 2**20  # of an answer with a bad status
RELOAD_SECONDS = 1.0  # a resident model is ready in tens of milliseconds; above this, the target loaded it again
LINGER_SECONDS = 2.0
THREAD_BYTES = 256 << 10  # a longer answer is parsed in a thread, so that it does not block the event loop

log = get_logger(__name__)


class Attempts:
    """What attempts share: the settings, the files, and who reads along."""

    def __init__(self, settings: InferenceConfig, files: Files, metrics: Metrics, running: RunningAttempts) -> None:
        self.settings = settings
        self.files = files
        self.metrics = metrics
        self.running = running
        self._pinned = {canonical(name): model for name, model in settings.models.items()}

    def pinned_for(self, model: str) -> ModelConfig | None:
        return self._pinned.get(model)

    async def work(self, job: Job, hand: Hand, slot: TargetSlot) -> Outcome:
        """Make one attempt at a job that the scheduler has claimed."""
        request = decode_request(job.payload)
        call = self.running.calls.get(job.id)
        if request.relay and call is None:
            return Broke("nobody waits for the answer any more: the caller's connection is gone", final=True)
        attempt = InferenceAttempt(self, job, hand, slot, request, call)
        with self.running.reading(job.id, attempt.stream):
            return await attempt.run()


class InferenceAttempt:
    def __init__(
        self,
        shared: Attempts,
        job: Job,
        hand: Hand,
        slot: TargetSlot,
        request: StoredRequest,
        call: HeldCall | None,
    ) -> None:
        self._shared = shared
        self._job = job
        self._hand = hand
        self._slot = slot
        self._target = slot.target
        self._step = slot.step
        self._request = pinned(request, shared.pinned_for(slot.step.model))
        self._call = call
        self._began = time.monotonic()
        self._states = StateWriter(hand)
        self._sent = False
        self._alone = slot.step.model in slot.target.ledger.cramped  # the model gets the target to itself
        self._evidence = AttemptEvidence(slot.target.name)
        self.stream = AnswerStream(job.attempt)

    async def run(self) -> Outcome:
        try:
            outcome = await self._try()
            await self._states.finish()
        except StoreError as error:
            return Parked("store", 1.0, f"parked: the store could not take a state: {error.message}")
        except asyncio.CancelledError:
            if self._sent and not self.stream.size:
                self._slot.linger(LINGER_SECONDS)
            raise
        return outcome

    async def _try(self) -> Outcome:
        try:
            async with self._target.watch():
                failed = await self._prepare() or await self._generate()
            return failed or await self._read_answer()
        except Gone as error:
            seen = Observed(Symptom.SILENCE, str(error))
        except TargetUnreachable as error:
            seen = Observed(Symptom.UNREACHABLE, str(error))
        except TimeoutError:
            seen = Observed(Symptom.STATUS, "the target did not finish in time", 500)
        except Unfit as error:
            seen = Observed(Symptom.STATUS, str(error), 502)
        except (aiohttp.ClientError, OSError) as error:
            event = Symptom.CUT if self.stream.head else Symptom.RESET
            said = f"the connection broke off after {self.stream.size} bytes" if self.stream.head else _say(error)
            seen = Observed(event, said, alive=await self._target.check())
        return await self._failed(seen)

    # the model in memory ----------------------------------------------------------------------------------------------

    async def _prepare(self) -> Outcome | None:
        """Get the model into memory. Return None when the request may be sent."""
        if isinstance(self._step, Ask):
            if not self._target.ledger.permits(self._step.model):
                error = f"no target may be asked for {self._step.model}: no list of models in inference.targets has it"
                return Broke(error, final=True, data=self._data([]))
            return None if self._call else await self._ask()
        if isinstance(self._step, Load):
            return await self._load(self._step)
        self._evidence.resident = True
        return None

    async def _ask(self) -> Outcome:
        """Ask the target for a model that it does not list, without loading it."""
        body = msgspec.json.encode({"model": self._step.model})
        answer = await self._target.ask("POST", "/api/show", body, timeout_seconds=30)
        if answer.status != 200:
            return await self._failed(self._bad_status(answer))
        if self._target.ledger.installed is not None:
            self._target.ledger.installed[self._step.model] = ""
        self._target.ledger.missing.discard(self._step.model)
        return Parked("slot", 0.0, f"{self._target.name} has {self._step.model} after all")

    async def _load(self, step: Load) -> Outcome | None:
        target, ledger = self._target, self._target.ledger
        if not await target.read_ps():
            if not target.up:
                raise TargetUnreachable(target.problem)
            return Parked("target", 1.0, f"parked: {target.name} is too busy to say what it has in memory")
        held = step.model in ledger.resident or await target.shares_weights(step.model)
        for victim in () if held and step.model not in ledger.cramped else step.evict:
            if victim in ledger.resident and not await target.unload(victim):
                return Parked("slot", 2.0, f"parked: {victim} is still in the memory of {target.name}")
            self._shared.metrics.count_eviction(target.name)
        self._evidence.resident = held and not ledger.expires(step.model)
        if self._evidence.resident:
            ledger.loaded(step.model)
            ledger.opening.pop(step.model, None)
            self._slot.share()
            return None
        return await self._preload(step)

    async def _preload(self, step: Load) -> Outcome | None:
        began = time.monotonic()
        path, body = preload(self._request)
        loading = self._target.load(
            step.model,
            path,
            body,
            lambda: self._states.write("loading", f"{self._target.name} was asked to load: {step.reason}"),
        )
        try:
            answer = await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_log_failed_load)  # the load goes on for the next job
            raise
        if answer.status != 200:
            if self._request.path.startswith("/v1/"):
                said = in_shape_of(self._request.path, answer.status, error_text(answer.body))
                answer = Small(answer.status, {"content-type": "application/json"}, said)
            return await self._failed(self._bad_status(answer))
        self._evidence.load_seconds = round(time.monotonic() - began, 4)
        self._shared.metrics.observe_load(self._target.name, self._evidence.load_seconds)
        self._target.refresh()
        return None

    # the answer -------------------------------------------------------------------------------------------------------

    async def _generate(self) -> Outcome | None:
        """Send the request and read the answer. Return None when the answer has ended."""
        began = time.monotonic()
        headers = {"Content-Type": "application/json"}
        limit = self._shared.settings.answer_timeout_seconds
        async with self._target.open(
            "POST", self._request.path, self._request.body, headers, sent=self._working, timeout_seconds=limit
        ) as response:
            if not 200 <= response.status <= 299:
                content = await read_whole(response, ERROR_BYTES)
                return await self._failed(self._bad_status(Small(response.status, response.headers, content)))
            self.stream.begin(Head(response.status, passed_on(response.headers)))
            if self._call is not None:
                self._call.give(self.stream)
            while piece := await response.content.readany():
                if not self.stream.size:
                    self._evidence.first_token_seconds = round(time.monotonic() - began, 4)
                self.stream.feed(piece)
                self._states.answer_begins()
                if self.stream.size > self._shared.settings.max_answer_bytes:
                    return await self._too_large()
        if self._request.leaves:
            self._target.ledger.unloaded(self._step.model)
        else:
            self._target.ledger.loaded(self._step.model)
        self.stream.close()
        return None

    async def _too_large(self) -> Outcome:
        error = f"the answer is over {self._shared.settings.max_answer_bytes} bytes (inference.max_answer_bytes)"
        self._evidence.finish = "truncated"
        self.stream.close(error)
        kept = await artifacts.keep_partial(self._shared.files, self._job, self._request, self.stream)
        return Broke(error, final=True, data=self._data(kept))

    async def _read_answer(self) -> Outcome:
        media = self.stream.head.media if self.stream.head else ""
        content = self.stream.content
        answer = (
            read_answer(self._request.form, media, content)
            if len(content) <= THREAD_BYTES
            else await asyncio.to_thread(read_answer, self._request.form, media, content)
        )
        self._evidence.finish = answer.finish
        self._evidence.prompt_tokens, self._evidence.tokens = answer.prompt_tokens, answer.tokens
        await self._check_reload(answer)
        if answer.finish == "error":
            return await self._failed(Observed(Symptom.ERROR_LINE, answer.error))
        if not answer.complete:
            repeats = answer.finish == "repeats"
            return await self._failed(
                Observed(Symptom.CUT, answer.error, alive=await self._target.check(), repeats=repeats)
            )
        kept = await artifacts.keep(self._shared.files, self._job, self._hand, self._request, answer)
        self._shared.metrics.observe_answer(self._target.name, self._evidence.first_token_seconds, answer.tokens)
        return Done(answer.result or b"null", f"answered by {self._target.name}", self._data(kept))

    async def _check_reload(self, answer: ModelAnswer) -> None:
        """Note that the target loaded the model again, which the final line of the answer shows."""
        if self._evidence.resident and (answer.load_seconds or 0) > RELOAD_SECONDS:
            self._evidence.reloaded = True
            await self._hand.note(
                f"{self._target.name} loaded {self._step.model} again within the request ({answer.load_seconds:.1f} s): "
                "its options differ from the last ones, or another client threw it out",
                level="warn",
                step="residency",
            )

    # states -----------------------------------------------------------------------------------------------------------

    def _working(self) -> None:
        """The request is on a live connection: write the state beside it."""
        self._sent = True
        if isinstance(self._step, Ask):
            return
        where = self._target.name
        self._states.write(
            "working",
            f"{self._step.model} is in memory on {where}" if self._evidence.resident else f"loaded on {where}",
        )

    def _data(self, kept: list[artifacts.InferenceArtifact]) -> bytes:
        self._evidence.seconds = round(time.monotonic() - self._began, 4)
        return msgspec.json.encode(AttemptData(self._evidence, kept or None))

    # what went wrong --------------------------------------------------------------------------------------------------

    def _bad_status(self, answer: Small) -> Observed:
        self._refusal = answer
        return Observed(
            Symptom.STATUS,
            error_text(answer.body),
            answer.status,
            self._request.path,
            cloud=is_cloud(self._step.model),
            retry_after_seconds=_retry_after(answer.headers),
        )

    _refusal: Small | None = None

    async def _failed(self, seen: Observed) -> Outcome:
        row = classify(seen)
        self._evidence.failure = row.kind
        self._evidence.finish = self._evidence.finish or ("truncated" if self.stream.size else "")
        self._shared.metrics.count_failure(row.kind)
        self.stream.close(seen.text or row.observation)
        kept = await artifacts.keep_partial(self._shared.files, self._job, self._request, self.stream)
        outcome = self._outcome(seen, row, self._data(kept))
        if self._call is not None and isinstance(outcome, Broke):
            self._relay_refusal()
        return outcome

    def _outcome(self, seen: Observed, row: FailureRow, data: bytes) -> Outcome:
        target = self._target
        said = f"{target.name}: {_describe(seen, row)}"
        error = f"{said}; {row.advice}" if row.advice else said
        if self._call is not None and self._call.answer.done():
            return Broke(error, final=True, data=data)  # the caller has begun to read: a retry cannot begin again
        if self._call is not None and row.action is FailureAction.LATER:
            return Broke(error, final=True, data=data)  # the caller decides whether to wait that long
        match row.action:
            case FailureAction.AWAY:
                # With a delay while the probe still counts it as up: else the job would go there again at once.
                return Parked("target", BUSY_SECONDS if target.up else 0.0, f"parked: {said}", data)
            case FailureAction.BUSY:
                parks = min(self._job.claims - self._job.attempt, 10)
                pause = min(BUSY_SECONDS * 2**parks, BUSY_MAX_SECONDS)
                return Parked("target", pause, f"parked: {said}", data)
            case FailureAction.LATER:
                return Parked("target", seen.retry_after_seconds or CLOUD_SECONDS, f"parked: {said}", data)
            case FailureAction.ELSEWHERE:
                return self._elsewhere(error, data)
            case FailureAction.RETRY:
                return Broke(error, data=data)
            case FailureAction.RETRY_ONCE:
                return Broke(error, final=self._job.attempt >= 2, data=data)
            case FailureAction.MAKE_ROOM:
                target.ledger.cramped.add(self._step.model)
                return Broke(error, delay_seconds=0.0, final=self._alone and self._job.attempt >= 2, data=data)
            case FailureAction.FAIL:
                return Broke(error, final=True, data=data)

    def _elsewhere(self, error: str, data: bytes) -> Outcome:
        self._target.ledger.missing.add(self._step.model)
        if self._slot.another_may_have():
            return Parked("target", 0.0, f"parked: {error}; another target may have it", data)
        return Broke(error, final=True, data=data)

    def _relay_refusal(self) -> None:
        """Give the caller the target's own error response, if there was one."""
        if self._refusal is None or self._call is None:
            return
        stream = AnswerStream(self._job.attempt)
        stream.begin(Head(self._refusal.status, passed_on(self._refusal.headers)))
        stream.feed(self._refusal.body)
        stream.close()
        self._call.give(stream)


def _describe(seen: Observed, row: FailureRow) -> str:
    status = f"{seen.status} " if seen.status else ""
    return f"{row.kind}: {status}{seen.text}".strip() if seen.text or status else f"{row.kind}: {row.observation}"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("Retry-After", "").strip()
    return min(float(text), 86_400.0) if text.isascii() and text.isdigit() and len(text) < 8 else None


def _log_failed_load(loading: "asyncio.Task[Small]") -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        log.info("a load that nobody waits for any more failed", error=str(error))


def _say(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
