"""How far a text reaches into the bytes of its tokens.

A text is what its tokens' bytes are but for bytes that are no character: for those stand one U+FFFD or several, how
many says the model's decoder. A byte-level one writes one for each longest beginning of a character, as Unicode
recommends (The Unicode Standard, 3.9); one that falls back to bytes writes one for each token of a byte. Both are
followed, and what comes after such bytes tells which of them it was.
"""

_REPLACEMENT = "\ufffd"
_LAST_ASCII = 0x7F
_LONGEST_CHARACTER = 4  # bytes of UTF-8
_MOST_PLACES = 4  # that are followed from the nearest on, and as many from the farthest on


class Cover:
    """One output: the bytes of its tokens as they come, and its text, which comes with them or later."""

    def __init__(self) -> None:
        self._data = bytearray()  # from the nearest place on
        self._alone = bytearray()  # of each byte, whether it is a token of its own
        self._passed = 0  # bytes before them
        self._places = [0]  # in the data, where the text may have come to, in order
        self._begun = False

    def add(self, data: bytes) -> int:
        """Take the next token's bytes; return how many are before it."""
        begin = self._passed + len(self._data)
        self._data += data
        self._alone += bytes([len(data) == 1]) * len(data)
        return begin

    def push(self, text: str) -> list[int]:
        """Take more of the text; return, for each of its characters, how many bytes there are up to its end."""
        if text and not self._begun:
            self._begun = True
            if self._data.startswith(b" ") and not text.startswith(" "):
                self._places = [1]  # the first token's space, which some decoders leave out
        ends = []
        for character in text:
            self._places = self._after(character)
            ends.append(self._passed + self._places[-1])
        self._drop()
        return ends

    def _after(self, character: str) -> list[int]:
        encoded = character.encode()
        if len(self._places) == 1 and character != _REPLACEMENT:
            return [self._places[0] + len(encoded)]  # the bytes say nothing else, or are of a decoder that changes them
        found = {place + len(encoded) for place in self._places if self._data.startswith(encoded, place)}
        if character == _REPLACEMENT:
            for place in self._places:
                found |= self._replaced(place)
            found = found or {place + 1 for place in self._places if self._is_alone(place)}  # a line break, in such
        if not found:
            return [self._places[-1] + len(encoded)]
        places = sorted(found)
        return places if len(places) <= 2 * _MOST_PLACES else places[:_MOST_PLACES] + places[-_MOST_PLACES:]

    def _replaced(self, place: int) -> set[int]:
        """Return where bytes end that U+FFFD may stand for."""
        found = set()
        if self._is_alone(place) and self._data[place] > _LAST_ASCII:
            found.add(place + 1)
        try:
            self._data[place : place + _LONGEST_CHARACTER].decode()
        except UnicodeDecodeError as error:
            if not error.start:
                found.add(place + error.end)
        return found

    def _is_alone(self, place: int) -> bool:
        return place < len(self._data) and bool(self._alone[place])

    def _drop(self) -> None:
        """Forget what is before all places."""
        count = min(self._places[0], len(self._data))
        del self._data[:count], self._alone[:count]
        self._passed += count
        self._places = [place - count for place in self._places]
