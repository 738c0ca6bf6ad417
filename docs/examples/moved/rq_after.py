"""Orders are packed, and their customers told: the program of rq_before.py, moved."""

from typing import TypedDict

from chargehand.client import App, current_task

app = App()


class Parcel(TypedDict):
    order: int
    parcels: int
    tries: int


@app.task(retry=4, timeout=60)
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
    for sent in tell.send_many(tell.new_task(customer, "thank you") for customer in ("bob", "eve")):
        print(sent.result(timeout=60))


if __name__ == "__main__":
    with app.worker().running():  # in production: chargehand worker MODULE:app
        main()
