"""Orders are packed, and their customers told: with RQ. It runs on an imitation of Redis; a real one is `Redis()`."""

import logging

from fakeredis import FakeStrictRedis
from rq import Queue, Retry, SimpleWorker, get_current_job

queue = Queue("shop", connection=FakeStrictRedis())


def pack(order, items):
    tries = 4 - get_current_job().retries_left
    if tries == 1:
        raise ConnectionError("the warehouse does not answer")
    return {"order": order, "parcels": len(items), "tries": tries}


def tell(customer, text):
    return f"{customer}: {text}"


def main():
    packing = queue.enqueue(pack, 17, items=["fox", "owl"], retry=Retry(max=3), job_timeout=60)
    work()
    parcel = packing.return_value()
    print(f"order {parcel['order']}: {parcel['parcels']} parcels after {parcel['tries']} tries")
    telling = queue.enqueue(
        tell, "ada", "on its way"
    )  # later: queue.enqueue_in(timedelta(…), tell, …), and a scheduler
    work()
    print(telling.return_value())
    sent = queue.enqueue_many([Queue.prepare_data(tell, (customer, "thank you")) for customer in ("bob", "eve")])
    work()
    for each in sent:
        print(each.return_value())


def work():
    """A worker is a process of its own elsewhere: `rq worker shop`."""
    SimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level=logging.CRITICAL)


if __name__ == "__main__":
    import rq_before  # RQ takes no functions of the program that is run

    rq_before.main()
