"""The process that runs one model in llama.cpp. It reads one line of settings and serves llama.cpp's HTTP API on loopback.

Each model has its own process, as in Ollama: unloading frees all memory, a crash ends only one model, and the API layer can
answer while a model loads (the binding holds the interpreter lock meanwhile).
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    output = os.dup(1)
    os.dup2(2, 1)  # so that libraries cannot print to our standard output
    settings = json.loads(sys.stdin.readline())
    address = serve(settings)
    os.write(output, json.dumps({"url": address}).encode() + b"\n")
    os.close(output)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdin.read()  # ends when the parent exits or closes it
    os._exit(0)  # llama.cpp's own exit can hang, and there is nothing to save


def serve(settings: dict[str, Any]) -> str:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["name"]}
    params.n_parallel = settings["parallel"]
    params.n_ctx = settings["num_ctx"] * settings["parallel"]  # shared by the parallel requests
    params.n_batch = params.n_ubatch = settings["num_batch"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["num_thread"]
    params.ctx_shift = settings["shift"]
    params.n_threads_http = settings["parallel"] + 4  # a waiting request occupies one
    params.embedding = True  # in addition to generating
    if not settings["pools"]:
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.api_keys = [settings["key"]]  # only our parent knows it
    params.port = 0
    params.ui = False
    params.offline = True
    params.endpoint_slots = False
    params.fit_params = False  # else it reduces the requested options
    params.warmup = False
    params.cache_ram_mib = 0  # the default keeps up to 8 GiB of old prompts
    params.sse_ping_interval = -1
    params.verbosity = 1  # errors only, which say why a load failed
    global server
    server = xllamacpp.Server(params)
    return str(server.listening_address)


server: Any = None  # a reference, because the server stops when it is garbage-collected

if __name__ == "__main__":
    main()
