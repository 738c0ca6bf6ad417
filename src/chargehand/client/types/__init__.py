"""What a client sends and reads, one file for each door. tests/client/test_types.py compares each type with the server's own."""
