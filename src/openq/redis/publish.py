"""Publishing: to a queue, and through exchanges to several."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from ..engine.publishing import make_properties
from ..errors import FunctionError, InvalidSetting, OpenQError, QueueFull, StoreUnavailable
from ..model import DeliveryOptions, Draft, Properties
from .drafts import content_key, own_fields, pack_draft
from .records import dump, light_fields, pack_record
from .registry import CachedQueue
from .store import RedisStore

_PAGE = 1000  # records in one call
_PAGE_BYTES = 1 << 20
_SMALL_PARTS = 64  # parts of one caller's publish up to which it is sent together with others
_SMALL_BYTES = 1 << 16
_STALE_RETRIES = 20

PublishResult = tuple[str, bool] | OpenQError  # id, and whether it is that of an earlier, equal message


class Publisher:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._state = store.state
        self._view = store.view

    # -- to a queue -----------------------------------------------------------------------------

    def publish_body(
        self,
        queue: str,
        body: bytes,
        encoding: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> int:
        """Fast path for plain messages. Returns the sequence, or 0 if the message needs `publish_many`."""
        view = self._view(queue)
        if not view.is_plain or (options is not None and not options.is_plain):
            return 0
        record = pack_record(body, encoding, properties, light_fields(options), False)
        if len(record) > _SMALL_BYTES:
            answer = self._publish_groups(view, [(record, b"")])[0][0]
        else:
            answer = self._store.batched(self._publish_groups, view, (record, b""))[0]
        seq = answer if isinstance(answer, int) else self._parse_seq(view, answer)
        if self._state.listeners:
            self._store.emit("published", queue, [self._store.id_of(seq)])
        return seq

    def publish_soon(self, queue: str, body: bytes, encoding: int) -> Awaitable[int] | None:
        """`publish_body` for coroutines, without a greenlet. None: it needs `publish_many`."""
        batcher, state = self._store.batcher, self._state
        view = (
            None if batcher is None or state.closed or state.listeners else state.registry.queues.get(queue)
        )
        if view is None or not view.is_plain or batcher is None:
            return None
        record = pack_record(body, encoding, None, b"", False)
        if len(record) > _SMALL_BYTES:
            return None
        return self._published(view, batcher.ask(self._publish_groups, view, (record, b"")))

    async def _published(self, view: CachedQueue, answers: Awaitable[list[Any]]) -> int:
        answer = (await answers)[0]
        return answer if isinstance(answer, int) else self._parse_seq(view, answer)

    def publish(self, queue: str, draft: Draft) -> str:
        result = self.publish_many(queue, [draft])[0]
        if isinstance(result, OpenQError):
            raise result
        return result[0]

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[PublishResult]:
        view = self._view(queue)
        results: list[PublishResult] = []
        for part in _pages(drafts):
            results += self._publish_page(view, part)
        return results

    def _publish_page(self, view: CachedQueue, drafts: Sequence[Draft]) -> list[PublishResult]:
        store = self._store
        for _ in range(_STALE_RETRIES):
            flat: list[bytes] = []
            refused: dict[int, OpenQError] = {}
            for place, draft in enumerate(drafts):
                try:
                    own_seq = store.own_seq(draft.id) if draft.id is not None else 0
                    flat += pack_draft(view, draft, store.now_ms(), own_seq)
                except InvalidSetting as error:
                    refused[place] = error
            if not flat:
                return [refused[place] for place in range(len(drafts))]
            try:
                answers = iter(self._publish_parts(view, flat))
            except FunctionError as error:
                if error.code != "STALE":
                    raise
                store.refresh(always=True)
                continue
            results = [
                refused[place] if place in refused else self.parse_reply(view, next(answers), draft.id)
                for place, draft in enumerate(drafts)
            ]
            if self._state.listeners:
                new = [each[0] for each in results if isinstance(each, tuple) and not each[1]]
                store.emit("published", view.name, new)
            return results
        raise StoreUnavailable(f"the settings of {view.name!r} change all the time")

    def publish_bodies(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties: Properties | Sequence[Properties] | None = None,
        options: DeliveryOptions | None = None,
    ) -> list[int] | None:
        """Fast path for many plain messages. Returns their sequences; None: they need `publish_many`."""
        view = self._view(queue)
        if not view.is_plain or (options is not None and not options.is_plain):
            return None
        published = light_fields(options)
        if isinstance(properties, Properties) or properties is None:
            packed = [pack_record(body, encoding, properties, published, False) for body in bodies]
        else:
            pairs = zip(bodies, properties, strict=True)
            packed = [pack_record(body, encoding, each, published, False) for body, each in pairs]
        return self._publish_plain(view, packed)

    def replay(self, view: CachedQueue, drafts: Sequence[Draft]) -> int:
        """Publish messages again, bypassing the deduplication window, which may know them. Returns how
        many."""
        if not drafts:
            return 0
        store = self._store
        flat: list[bytes] = []
        for draft in drafts:
            flat += pack_draft(view, draft, store.now_ms(), store.own_seq(draft.id or ""), again=True)
        results = [self.parse_reply(view, answer) for answer in self._publish_groups(view, [tuple(flat)])[0]]
        return sum(not isinstance(each, OpenQError) and not each[1] for each in results)

    def _publish_plain(self, view: CachedQueue, packed: list[bytes]) -> list[int]:
        seqs: list[int] = []
        for part in _pages(packed):
            flat: list[bytes] = [b""] * (2 * len(part))
            flat[::2] = part
            for answer in self._publish_parts(view, flat):
                seqs.append(answer if isinstance(answer, int) else self._parse_seq(view, answer))
        if self._state.listeners:
            self._store.emit("published", view.name, map(self._store.id_of, seqs))
        return seqs

    def _publish_parts(self, view: CachedQueue, flat: list[bytes]) -> list[Any]:
        if len(flat) > _SMALL_PARTS or sum(map(len, flat)) > _SMALL_BYTES:
            return self._publish_groups(view, [tuple(flat)])[0]
        answers: list[Any] = self._store.batched(self._publish_groups, view, tuple(flat))
        return answers

    def _publish_groups(self, view: CachedQueue, groups: list[tuple[bytes, ...]]) -> list[list[Any]]:
        """One call for what several callers publish to a queue. Returns the answers of each caller. The call
        is repeated with its token until there is an answer, so nothing is published twice."""
        flat = groups[0] if len(groups) == 1 else [part for group in groups for part in group]
        found = self._store.ask_queue(view, "publish", self._store.token(), *flat)
        self._store.confirm_batch()
        answers: Sequence[Any] = found
        if len(found) == 1 and found[0][:1] == b"~":
            first = int(found[0][1:])
            answers = range(first, first + len(flat) // 2)
        results: list[list[Any]] = []
        at = 0
        for group in groups:
            count = len(group) // 2
            results.append(list(answers[at : at + count]))
            at += count
        return results

    # -- answers --------------------------------------------------------------------------------

    def parse_reply(self, view: CachedQueue, answer: Any, own_id: str | None = None) -> PublishResult:
        if isinstance(answer, int):
            return self._store.id_of(answer), False
        kind = answer[:1]
        if kind == b"=":
            return self._parse_id(answer[1:]), True
        if kind == b"!":
            return publish_error(view, answer[1:].decode())
        return own_id or self._store.id_of(int(answer)), False

    def _parse_seq(self, view: CachedQueue, answer: Any) -> int:
        result = self.parse_reply(view, answer)
        if isinstance(result, OpenQError):
            raise result
        return self._store.own_seq(result[0])

    def _parse_id(self, text: bytes) -> str:
        return text[1:].decode() if text[:1] == b"i" else self._store.id_of(int(text[1:]))

    # -- through exchanges ----------------------------------------------------------------------

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]:
        registry = self._store.registry
        self._store.refresh()
        headers = draft.attributes if draft.properties is None else draft.properties
        draft.route = (exchange, key)
        names = registry.router.route(exchange, key, headers)
        for name in names:
            view = registry.queues.get(name)
            max_body = None if view is None else view.settings.max_body
            if view is not None and max_body is not None and len(draft.body) > max_body:
                raise publish_error(view, f"large {len(draft.body)}")
        message_id, reached, refused = self.route_to(names, draft)
        if refused is not None and not reached:
            raise refused
        return message_id, reached

    def route_to(self, names: Sequence[str], draft: Draft) -> tuple[str, list[str], OpenQError | None]:
        """Publish to all of these queues. Returns the id, the queues reached, and the error of one that
        refused.

        Publishing to several queues takes two steps (see moves.py). Once each queue has reported that it
        would accept the message, one call stores it. The message then reaches all of them even if this
        process dies right after.
        """
        queues = self._store.registry.queues
        views = [queues[name] for name in dict.fromkeys(names) if name in queues]
        if not views:
            return "", [], None
        if len(views) == 1:
            result = self._publish_page(views[0], [draft])[0]
            if isinstance(result, QueueFull):
                return "", [], result
            if isinstance(result, OpenQError):
                raise result
            return result[0], [] if result[1] else [views[0].name], None
        return self._fan_out(views, draft)

    def _fan_out(self, views: list[CachedQueue], draft: Draft) -> tuple[str, list[str], OpenQError | None]:
        store = self._store
        fields = own_fields(draft, store.now_ms())
        if draft.id is not None and store.own_seq(draft.id):
            fields["is"] = str(store.own_seq(draft.id))
        record = pack_record(draft.body, draft.encoding, make_properties(draft), b"", True)
        asked = dump(fields | {"ck": content_key(draft.body)})
        accepting: list[CachedQueue] = []
        refused: OpenQError | None = None
        message_id = ""
        for view in views:
            answer: bytes = store.ask_queue(view, "check_publish", len(draft.body), asked, record)
            if answer[:1] == b"=":
                message_id = self._parse_id(answer[1:])
            elif answer[:1] == b"!":
                refused = publish_error(view, answer[1:].decode())
            else:
                accepting.append(view)
        if not accepting:
            return message_id, [], refused
        if len(accepting) == 1:
            result = self._publish_page(accepting[0], [draft])[0]
            if isinstance(result, OpenQError):
                return "", [], result
            return result[0], [] if result[1] else [accepting[0].name], refused
        fields.pop("is", None)
        fields["ck"] = content_key(draft.body)
        names = [view.name for view in accepting]
        seq, _ = store.ask_queue(
            accepting[0], "fan_out", store.token(), json.dumps(names), dump(fields), record
        )
        return draft.id or store.id_of(int(seq)), names, refused


def publish_error(view: CachedQueue, text: str) -> OpenQError:
    word, _, rest = text.partition(" ")
    if word == "large":
        max_body = view.settings.max_body
        return InvalidSetting(f"a body of {rest} bytes; queue {view.name!r} takes at most {max_body}")
    return QueueFull(view.name, rest)


def _pages(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Pages limited in number and size: one call blocks Redis for all other clients."""
    start = size = 0
    for at, item in enumerate(items):
        size += len(item.body if isinstance(item, Draft) else item)
        if at - start + 1 >= _PAGE or size >= _PAGE_BYTES:
            yield items[start : at + 1]
            start, size = at + 1, 0
    if start < len(items):
        yield items[start:]
