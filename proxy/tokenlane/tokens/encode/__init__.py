"""Text to ids: the encoder, where a text may be cut, and faster engines proven equal to it."""
