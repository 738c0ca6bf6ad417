"""Orders are packed, and their customers told: the program of celery_before.py, moved."""

from typing import TypedDict

from chargehand.client import App, Every, Retries, current_task

app = App()


class Parcel(TypedDict):
    order: int
    parcels: int
    tries: int


@app.task(retry=Retries(attempts=4, first_seconds=1, only=(ConnectionError,)), timeout=60)
def pack(order: int, items: list[str]) -> Parcel:
    if current_task().attempt == 1:
        raise ConnectionError("the warehouse does not answer")
    return {"order": order, "parcels": len(items), "tries": current_task().attempt}


@app.task
def tell(customer: str, text: str) -> str:
    return f"{customer}: {text}"


@app.task(every=Every("30 2 * * *", "Europe/Berlin"))
def sweep() -> str:
    return "clean"


def main() -> None:
    packing = pack.send(17, items=["fox", "owl"])
    parcel = packing.result(timeout=60)
    print(f"order {parcel['order']}: {parcel['parcels']} parcels after {parcel['tries']} tries")
    telling = tell.options(delay_seconds=1).send("ada", "on its way")
    print(telling.result(timeout=60))
    for sent in tell.send_many(tell.new_task(customer, "thank you") for customer in ("bob", "eve")):
        print(sent.result(timeout=60))


if __name__ == "__main__":
    with app.worker(concurrency=4).running():  # in production: chargehand worker --concurrency 4 MODULE:app
        main()
