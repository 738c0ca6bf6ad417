"""Orders are packed, and their customers told: with Dramatiq. It runs without a broker; a real one is a `RedisBroker`."""

import logging

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

logging.getLogger("dramatiq").setLevel(logging.CRITICAL)  # the failed try is no news here
broker = StubBroker()
broker.add_middleware(Results(backend=StubBackend()))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=3, min_backoff=1000, throws=(ValueError,), time_limit=60_000, store_results=True)
def pack(order, items):
    tries = CurrentMessage.get_current_message().options.get("retries", 0) + 1
    if tries == 1:
        raise ConnectionError("the warehouse does not answer")
    return {"order": order, "parcels": len(items), "tries": tries}


@dramatiq.actor(store_results=True)
def tell(customer, text):
    return f"{customer}: {text}"


def main():
    packing = pack.send(17, items=["fox", "owl"])
    parcel = packing.get_result(block=True, timeout=60_000)
    print(f"order {parcel['order']}: {parcel['parcels']} parcels after {parcel['tries']} tries")
    telling = tell.send_with_options(args=("ada", "on its way"), delay=1000)
    print(telling.get_result(block=True, timeout=60_000))
    for sent in [tell.send(customer, "thank you") for customer in ("bob", "eve")]:
        print(sent.get_result(block=True, timeout=60_000))


if __name__ == "__main__":
    worker = dramatiq.Worker(broker, worker_timeout=100)
    worker.start()
    main()
    worker.stop()
