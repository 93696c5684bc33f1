"""When a failed job runs again: the number of attempts, the back-off, and the exceptions it depends on."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..model import RetryPolicy
from .errors import InvalidArguments, InvalidResult, InvalidTask, Retry

# 1 s, doubled after each failure, at most 15 minutes, up to a fifth less at random.
DEFAULT_BACKOFF = RetryPolicy("exponential", 1_000, 2.0, 900_000, 0.2)

ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class RetryRules:
    """The retries of one task. `retries` is the number of further attempts after the first."""

    retries: int = 3
    backoff: RetryPolicy = DEFAULT_BACKOFF
    retry_on: tuple[type[BaseException], ...] = (Exception, SystemExit)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise InvalidTask(f"retries must be a whole number, 0 or more, not {self.retries!r}")

    def delay(self, error: BaseException, attempt: int) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        if attempt > self.retries or isinstance(error, InvalidArguments | InvalidResult):
            return None
        if isinstance(error, Retry):
            after = error.after
            return self._backoff(attempt) if after is None else max(after, 0.0)
        if isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on):
            return None
        return self._backoff(attempt)

    def _backoff(self, attempt: int) -> float:
        return self.backoff.delay_ms(attempt, random.random()) / 1000


def exception_types(given: ExceptionTypes, name: str) -> tuple[type[BaseException], ...]:
    types = given if isinstance(given, tuple) else (given,)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidTask(f"{name} must be an exception type or a tuple of them, not {each!r}")
    return types
