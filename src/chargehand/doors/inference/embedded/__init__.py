"""The embedded target: a real small model with no Ollama at hand, in processes of its own.

    process.py        starts it from the server and keeps it running
    __main__.py       the process: listens, says where, ends with its parent
    app.py            the routes, and how a refusal looks on each API
    generations.py    chat and generate: the main path
    embeddings.py · discovery.py · requests.py · shapes.py · compatible.py
    residents.py      which models are in memory, for how long, and who uses them
    catalogue.py      which models there are, by what names; gguf.py reads what a file says of itself
    backend.py        what is asked of an engine; llama.py is llama.cpp, which runs in llama_process.py (schemas.py)

The layer that speaks Ollama's API is ours. It proves that real tokens flow, not that every habit of Ollama is matched.
"""
