"""`/v1/responses`: OpenAI's Responses API, over the same path as chat.

    endpoints.py    START HERE: the handlers
    request.py      what a request may say
    items.py        what its input may be made of, and the one form in which items are kept
    context.py      what it goes on from: previous responses, and items that are referred to
    planning.py     what it asks of a worker, and what is kept of it
    scribe.py       a worker's events as steps
    narrator.py     steps as events and objects; pure, so that what is stored tells the same events again
    answering.py    to a client that waits
    background.py   without one: generated and stored as it comes, under a lease
    following.py    streams one of those
    document.py     what is stored of a response
    desk.py         the web process's way to the store

Texts are the tenant's: none is logged, and all are sealed in the database (`tenants.sealing`).
"""
