"""TLS for both sides of a connection: options, key and trust stores, contexts that follow changes of their files."""
