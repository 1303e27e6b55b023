"""The server that speaks the OpenAI API, and its page."""
