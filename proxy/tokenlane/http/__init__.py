"""HTTP/1.1 towards clients (server) and replicas (pool, upstream). It knows nothing of models:
whoever makes a server hands it the handler, and the format of errors for each path."""
