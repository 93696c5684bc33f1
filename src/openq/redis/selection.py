"""Which messages a consumer with a filter may get.

Types are in the options of a message, which the functions of Redis know. Attributes are in its record, in the
form of the protocol that published it: this process reads the records of ready messages, and asks for those
that match.
"""

from __future__ import annotations

import json

from ..model import MessageFilter
from .records import encoded, entry_if_sound
from .registry import CachedQueue
from .store import RedisStore, chunks

_PAGE = 256  # records read at once


class MessageSelection:
    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def choose(self, view: CachedQueue, wanted: MessageFilter | None, limit: int) -> tuple[str | None, bool]:
        """What a receive asks for, None if nothing matches, and whether an empty reply is certain.

        It is not if others received these messages meanwhile: there may be more that match.
        """
        if wanted is None:
            return "", True
        if not wanted.attributes:
            return encoded(json.dumps(list(wanted.types or ()), ensure_ascii=False)), True
        # In a FIFO queue a message may have to wait for its group, while later ones need not.
        seqs = self._matching(view, wanted, 0 if view.fifo else limit)
        return (json.dumps({"seqs": seqs}), view.fifo) if seqs else (None, True)

    def _matching(self, view: CachedQueue, wanted: MessageFilter, limit: int) -> list[int]:
        """The first ready messages that match; all that match if `limit` is 0."""
        ready, edited = self._store.ask_queue(view, "ready_seqs")
        changed = set(edited.split())
        found: list[int] = []
        for page in chunks(ready.split(), _PAGE):
            unknown = [seq for seq in page if seq in changed or int(seq) not in wanted.verdicts]
            self._decide(view, wanted, unknown)
            found += [int(seq) for seq in page if wanted.verdicts.get(int(seq))]
            if 0 < limit <= len(found):
                return found[:limit]
        return found

    def _decide(self, view: CachedQueue, wanted: MessageFilter, seqs: list[bytes]) -> None:
        answer = self._store.ask_queue(view, "look", *seqs) if seqs else []
        for at in range(0, len(answer), 5):
            entry = entry_if_sound(answer[at], answer[at + 1], answer[at + 2])
            # One that cannot be read is received, and set aside then.
            verdict = entry is None or (
                wanted.has_type(entry.options) and wanted.has_attributes(entry.properties)
            )
            wanted.keep_verdict(int(answer[at].partition(b"-")[0]), verdict)
