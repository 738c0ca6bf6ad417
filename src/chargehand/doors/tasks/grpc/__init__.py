"""codeQ's gRPC streams: what its SDKs speak instead of HTTP. Off unless `tasks.grpc_listen` is set; needs the extra `grpc`.

- `messages.py`: the messages of the wire.
- `conversation.py`: one stream from Hello to its end, whatever is said on it.
- `producing.py`, `working.py`: what producers and workers may say, and what is answered.
- `server.py`: listens, and ends all streams when the server stops.
"""
