"""Runs one command in its own namespaces: `spec` says what, `spawner` is the process that starts it."""
