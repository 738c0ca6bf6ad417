"""How calls reach a server: HTTP with retries, pages, job logs over SSE, and the loop behind the blocking client."""
