"""Outputs that must be something: a JSON document of a schema, a match of a regular expression, a word of a grammar.

    front  front/grammars.py ─▶ helper process (`python -m engine.constraints`): is it a grammar, and not too much work?
    core   preparing.py, in a thread: text ─▶ matcher at the beginning, shared by all outputs that follow the grammar
           following.py, one an output: tokens so far ─▶ mask of the tokens that may come next ─▶ StepOptions.mask

    both   fair.py: whose grammar is next; shelf.py: what is kept of each tenant's, and of nobody else's

Only `base` is known to the scheduler. llguidance does the work; it is imported where a grammar is first asked for.
"""
