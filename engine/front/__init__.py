"""The worker's front: gRPC, detokenising, metering and the watch over the core. Never imports torch.

server ─ auth, address        calls, tokens and sockets
  ├ connection                one Generate stream and its bounded buffer
  │   └ dispatch              START HERE: the path of a request and of a token
  │       ├ live_request      one running request; what a submit must be
  │       ├ outputs, ranking  its outputs: as they come, or the best at the end
  │       │   └ detokenize    tokens to text, stop strings
  │       └ meter ─ table, journal    usage that survives any crash
  ├ sessions                  calls about sessions that wait for the core
  └ control ─ policies, stats  the controller's stream
core_process ─ child, link    the core, its frames, its restarts
worker ─ state, announce, logs    what starts in which order, and how it ends
"""
