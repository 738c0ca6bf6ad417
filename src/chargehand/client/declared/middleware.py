"""What an application does around every task: a trace, a tenant, a measure, a transaction."""

from contextlib import AbstractContextManager, nullcontext

from chargehand.client.types.tasks import NewTask
from chargehand.client.worker.held import Held


class Middleware:
    """Override what you need. Of several in an app the first is the outermost."""

    def before_send(self, new: NewTask) -> NewTask:
        """The task that is to be sent; its `metadata` comes with it to the worker."""
        return new

    def around_run(self, task: Held) -> AbstractContextManager[object]:
        """Entered before the function runs and left after it, in its thread. It sees what the function raises; if it
        suppresses that, the task is done and has no result."""
        return nullcontext()
