"""Outputs that must be something: a JSON document of a schema, a match of a regular expression, a word of a grammar."""
