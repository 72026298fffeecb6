"""Speed, measured beside peers; nothing here is a test."""
