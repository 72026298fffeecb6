"""Writes: each public function is one transaction of change, audit row, outbox row and NOTIFY."""
