"""The worker's front: gRPC, detokenising, metering and the watch over the core. Never imports torch."""
