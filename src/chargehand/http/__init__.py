"""What all doors share at the HTTP side: routes, problems, auth, bounds, paging, streams, the API description."""
