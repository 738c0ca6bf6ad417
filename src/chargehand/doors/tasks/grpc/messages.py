"""codeQ's gRPC messages, described here field by field as they are on the wire, and made into classes when the door is switched on.

A field's number is its place in the list. `*` repeats; what begins with a capital letter is a message.
"""

from typing import Any

from google.protobuf import descriptor_pool, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

EVENT = "event"  # the oneof in the messages that both sides send

_ANSWER = "task_id:string ok:bool error_message:string"
_WORKER = {
    "Task": (
        "id:string command:string payload:bytes priority:int32 webhook:string max_attempts:int32 status:string worker_id:string "
        "lease_until:string attempts:int32 tenant_id:string created_at:Timestamp updated_at:Timestamp"
    ),
    "Hello": "token:string worker_id:string",
    "Ready": "commands:*string lease_seconds:int32 count:int32",
    "Result": "task_id:string status:string result_json:bytes error:string",
    "Nack": "task_id:string delay_seconds:int32 reason:string",
    "Heartbeat": "task_id:string extend_seconds:int32",
    "Abandon": "task_id:string",
    "ResultBatch": "results:*Result",
    "HelloAck": "worker_id:string tenant_id:string",
    "TaskAssignment": "task:Task",
    "TaskBatch": "tasks:*Task",
    "ResultAck": _ANSWER,
    "ResultAckBatch": "acks:*ResultAck",
    "HeartbeatAck": _ANSWER,
    "NackAck": f"{_ANSWER} applied_delay_seconds:int32 dlq:bool",
    "AbandonAck": _ANSWER,
    "ServerError": "message:string code:string",
    "WorkerEvent": (
        "hello:Hello ready:Ready result:Result nack:Nack heartbeat:Heartbeat abandon:Abandon result_batch:ResultBatch"
    ),
    "ServerEvent": (
        "hello_ack:HelloAck task:TaskAssignment result_ack:ResultAck heartbeat_ack:HeartbeatAck nack_ack:NackAck "
        "abandon_ack:AbandonAck error:ServerError task_batch:TaskBatch result_ack_batch:ResultAckBatch"
    ),
}
_PRODUCER = {
    "Hello": "token:string",
    "CreateTask": (
        "seq:uint64 command:string payload:bytes priority:int32 webhook:string max_attempts:int32 idempotency_key:string "
        "run_at:Timestamp delay_seconds:int32 trace_parent:string trace_state:string"
    ),
    "CreateTaskBatch": "tasks:*CreateTask",
    "HelloAck": "tenant_id:string subject:string",
    "CreateAck": "seq:uint64 ok:bool task_id:string error_message:string",
    "CreateAckBatch": "acks:*CreateAck",
    "ServerError": "code:string message:string",
    "ProducerEvent": "hello:Hello create:CreateTask create_batch:CreateTaskBatch",
    "ServerEvent": "hello_ack:HelloAck create_ack:CreateAck error:ServerError create_ack_batch:CreateAckBatch",
}
_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}


class Wire:
    """The messages of one service: `wire.Task(id=…)`, and the two that its stream consists of."""

    def __init__(self, package: str, service: str, asked: str, messages: dict[str, str]) -> None:
        self.service = f"{package}.{service}"
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
        for name, fields in messages.items():
            file.message_type.append(_described(package, name, fields))
        pool.Add(file)
        self._classes = {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
        self.Asked = self._classes[asked]
        self.Answer = self._classes["ServerEvent"]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._classes[name]
        except KeyError:
            raise AttributeError(name) from None


def worker_wire() -> Wire:
    return Wire("workerpb", "WorkerStream", "WorkerEvent", _WORKER)


def producer_wire() -> Wire:
    return Wire("producerpb", "ProducerStream", "ProducerEvent", _PRODUCER)


def _described(package: str, name: str, fields: str) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for number, each in enumerate(fields.split(), 1):
        field_name, _, kind = each.partition(":")
        repeated, kind = kind.startswith("*"), kind.removeprefix("*")
        field = message.field.add(name=field_name, number=number)
        field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if kind in _TYPES:
            field.type = _TYPES[kind]
        else:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = ".google.protobuf.Timestamp" if kind == "Timestamp" else f".{package}.{kind}"
        if name.endswith("Event"):
            field.oneof_index = 0
    if name.endswith("Event"):
        message.oneof_decl.add(name=EVENT)
    return message
