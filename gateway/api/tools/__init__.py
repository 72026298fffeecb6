"""Calling of functions: how a model is told of tools, made to call one, and understood when it does.

plan.py        START HERE: a request and a model in; what to render, which grammar to ask for, a parser an output
checks.py      what a request may say of tools, and which messages may follow which
turns.py       the conversation as the model's template takes it
detect.py      which form the model writes calls in
forms.py       Form: what a form is; Hermes, Llama and Mistral
grammar.py     the grammar that keeps an output to its form
parser.py      an output's text in, pieces of content and calls out
  call.py, named_call.py   one call
  json_value.py            one JSON value, in pieces
pieces.py      what comes out
"""
