"""The process that holds one model in llama.cpp. It reads one line of settings and serves llama.cpp's HTTP API on loopback.

A process for each model, as Ollama has it: unloading gives all memory back, a crash takes one model along, and the layer goes
on answering while this one loads (the binding holds the interpreter lock for that long).
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    said = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not be taken for what we say
    settings = json.loads(sys.stdin.readline())
    address = serve(settings)
    os.write(said, json.dumps({"url": address}).encode() + b"\n")
    os.close(said)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdin.read()  # the layer is gone, or wants us gone
    os._exit(0)  # llama.cpp's own way out can hang, and there is nothing to save


def serve(settings: dict[str, Any]) -> str:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["name"]}
    params.n_parallel = settings["parallel"]
    params.n_ctx = settings["num_ctx"] * settings["parallel"]  # it is divided among them
    params.n_batch = params.n_ubatch = settings["num_batch"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["num_thread"]
    params.ctx_shift = settings["shift"]
    params.n_threads_http = settings["parallel"] + 4  # a waiting request holds one
    params.embedding = True  # beside generating
    if not settings["pools"]:
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.api_keys = [settings["key"]]  # nobody but the layer
    params.port = 0
    params.ui = False
    params.offline = True
    params.endpoint_slots = False
    params.fit_params = False  # else it shrinks what was asked for
    params.warmup = False
    params.cache_ram_mib = 0  # by default it keeps up to 8 GiB of old prompts
    params.sse_ping_interval = -1
    params.verbosity = 1  # errors, which say why a load failed
    global server
    server = xllamacpp.Server(params)
    return str(server.listening_address)


server: Any = None  # kept: it stops when it is forgotten

if __name__ == "__main__":
    main()
