"""Connects the two services with the parts of the door. Imported only when the streams are switched on: it needs grpcio."""

from functools import partial

from chargehand.config import Config
from chargehand.doors.tasks.grpc.messages import producer_wire, worker_wire
from chargehand.doors.tasks.grpc.producing import Producing
from chargehand.doors.tasks.grpc.server import GrpcServer
from chargehand.doors.tasks.grpc.working import Working
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.producer import ProducerApi
from chargehand.doors.tasks.results import ResultsApi
from chargehand.doors.tasks.roll import Roll
from chargehand.doors.tasks.worker import WorkerApi
from chargehand.engine.engine import Engine


def grpc_server(
    config: Config,
    engine: Engine,
    producer: ProducerApi,
    worker: WorkerApi,
    results: ResultsApi,
    limits: Limits,
    roll: Roll,
) -> GrpcServer:
    producing, working = producer_wire(), worker_wire()
    services = (
        (producing, partial(Producing, producing, producer)),
        (working, partial(Working, working, engine, worker, results, limits, roll)),
    )
    return GrpcServer(config, services)
