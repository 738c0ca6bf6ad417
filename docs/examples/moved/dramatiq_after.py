"""Orders are packed, and their customers told: the program of dramatiq_before.py, moved."""

from typing import TypedDict

from chargehand.client import App, Retries, current_task

app = App()


class Parcel(TypedDict):
    order: int
    parcels: int
    tries: int


@app.task(retry=Retries(attempts=4, first_seconds=1, never=(ValueError,)), timeout=60)
def pack(order: int, items: list[str]) -> Parcel:
    tries = current_task().attempt
    if tries == 1:
        raise ConnectionError("the warehouse does not answer")
    return {"order": order, "parcels": len(items), "tries": tries}


@app.task
def tell(customer: str, text: str) -> str:
    return f"{customer}: {text}"


def main() -> None:
    packing = pack.send(17, items=["fox", "owl"])
    parcel = packing.result(timeout=60)
    print(f"order {parcel['order']}: {parcel['parcels']} parcels after {parcel['tries']} tries")
    telling = tell.options(delay_seconds=1).send("ada", "on its way")
    print(telling.result(timeout=60))
    for sent in [tell.send(customer, "thank you") for customer in ("bob", "eve")]:
        print(sent.result(timeout=60))


if __name__ == "__main__":
    with app.worker(concurrency=8).running():  # in production: chargehand worker --concurrency 8 MODULE:app
        main()
