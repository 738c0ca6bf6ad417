"""The embedded target: runs small models without Ollama, in processes of its own.

    process.py        starts it from the server and keeps it running
    __main__.py       the process: listens, prints its URL, ends with its parent
    app.py            the routes, and the error format of each API
    generations.py    chat and generate: the main path
    embeddings.py · discovery.py · requests.py · shapes.py · compatible.py
    residents.py      which models are in memory, for how long, and their users
    catalogue.py      which models exist, by name; gguf.py reads the header of a model file
    backend.py        the protocol of an engine; llama.py is llama.cpp, which runs in llama_process.py (schemas.py)

The layer that implements Ollama's API is ours. It is for real tokens in tests and demos; it does not match Ollama in every detail.
"""
