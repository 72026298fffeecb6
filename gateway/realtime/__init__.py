"""The realtime websocket: responses streamed over one socket."""
