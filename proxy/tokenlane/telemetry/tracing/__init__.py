"""W3C trace context and OpenTelemetry spans, exported by a thread of its own."""
