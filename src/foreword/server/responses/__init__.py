"""The Responses API, without a memory: what it asks is a chat, and what it answers is a list of items."""
