"""The stories of `tests/client/test_failures.py` in Redis."""

import pytest

from tests.client.test_failures import (
    Place,
    test_a_backup_keeps_tracebacks,
    test_a_block_that_exits_gives_its_message_back_at_once_and_counts,
    test_a_dead_letter_keeps_the_exception_and_its_traceback,
    test_a_handler_slower_than_its_lease_finishes_once,
    test_a_handler_that_exits_has_failed_for_its_message,
    test_a_long_text_of_an_exception_leaves_room_for_its_frames,
    test_a_message_that_always_fails_does_not_block_the_others,
    test_a_nack_waits_unless_it_says_otherwise,
    test_a_reason_may_be_an_exception_that_was_never_raised,
    test_a_traceback_is_bounded_and_its_end_is_kept,
    test_an_interrupted_consumer_gives_its_whole_batch_back,
    test_an_opening_that_changed_a_queue_is_logged,
    test_interrupted_work_does_not_count_as_failed,
    test_why_says_how_often_a_message_failed,
    test_without_a_heartbeat_a_lease_ends_as_it_always_did,
)
from tests.redis.servers import Server

__all__ = [
    "test_a_backup_keeps_tracebacks",
    "test_a_block_that_exits_gives_its_message_back_at_once_and_counts",
    "test_a_dead_letter_keeps_the_exception_and_its_traceback",
    "test_a_handler_slower_than_its_lease_finishes_once",
    "test_a_handler_that_exits_has_failed_for_its_message",
    "test_a_long_text_of_an_exception_leaves_room_for_its_frames",
    "test_a_message_that_always_fails_does_not_block_the_others",
    "test_a_nack_waits_unless_it_says_otherwise",
    "test_a_reason_may_be_an_exception_that_was_never_raised",
    "test_a_traceback_is_bounded_and_its_end_is_kept",
    "test_an_interrupted_consumer_gives_its_whole_batch_back",
    "test_an_opening_that_changed_a_queue_is_logged",
    "test_interrupted_work_does_not_count_as_failed",
    "test_why_says_how_often_a_message_failed",
    "test_without_a_heartbeat_a_lease_ends_as_it_always_did",
]


@pytest.fixture
def place(redis_server: Server) -> Place:
    return {"url": f"{redis_server.url}?profile=fast"}
