"""Requests of every dialect to one conversation, and a conversation to the prompt's text."""
