"""The OpenAI surface; `chat.py` is the place to start."""
