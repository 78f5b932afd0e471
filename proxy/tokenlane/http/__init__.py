"""HTTP/1.1 on both sides: pure rules (framing, chunked, headers, sse) and the Protocols
that apply them (server, upstream, relay)."""
