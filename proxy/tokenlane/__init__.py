"""tokenlane: an event-loop LLM gateway that routes prompts by their tokens."""

__version__ = "0.1.0"
