"""Orders are packed, and their customers told: with Celery. It runs without a broker; a real one is `broker="redis://…"`."""

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.schedules import crontab

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.beat_schedule = {"sweep": {"task": "sweep", "schedule": crontab(hour=2, minute=30)}}
app.conf.timezone = "Europe/Berlin"


@app.task(name="pack", bind=True, autoretry_for=(ConnectionError,), retry_backoff=1, max_retries=3, time_limit=60)
def pack(self, order, items):
    if self.request.retries == 0:
        raise ConnectionError("the warehouse does not answer")
    return {"order": order, "parcels": len(items), "tries": self.request.retries + 1}


@app.task(name="tell")
def tell(customer, text):
    return f"{customer}: {text}"


@app.task(name="sweep")
def sweep():
    return "clean"


def main():
    packing = pack.delay(17, items=["fox", "owl"])
    parcel = packing.get(timeout=60)
    print(f"order {parcel['order']}: {parcel['parcels']} parcels after {parcel['tries']} tries")
    telling = tell.apply_async(("ada", "on its way"), countdown=1)
    print(telling.get(timeout=60))
    for sent in [tell.delay(customer, "thank you") for customer in ("bob", "eve")]:
        print(sent.get(timeout=60))


if __name__ == "__main__":
    with start_worker(app, perform_ping_check=False, loglevel="error"):
        main()
