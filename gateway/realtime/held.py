"""How much memory a value takes that came as JSON, or was made of it. Pure."""

import sys

import msgspec


def held_bytes(value: object) -> int:
    """Return the bytes of memory of a value and of all that is in it; what stands twice in it counts twice."""
    total, rest = 0, [value]
    while rest:
        one = rest.pop()
        if one is None:
            continue
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            rest.extend(one)
            rest.extend(one.values())
        elif isinstance(one, list | tuple):
            rest.extend(one)
        elif isinstance(one, msgspec.Struct):
            rest.extend(getattr(one, name) for name in one.__struct_fields__)
    return total
