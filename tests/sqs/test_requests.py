"""requests.py against botocore's model of the service: nothing missing, nothing more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openq.sqs import requests as sqs
from tests.sqs.model import ACTIONS, JSON, operation

KINDS = {"string": str, "integer": int, "long": int, "boolean": bool, "blob": bytes}


def kind_of(annotation: msgspec.inspect.Type) -> msgspec.inspect.Type:
    if isinstance(annotation, msgspec.inspect.UnionType):
        [annotation] = [one for one in annotation.types if not isinstance(one, msgspec.inspect.NoneType)]
    return annotation


def assert_same(annotation: msgspec.inspect.Type, shape: Any, where: str) -> None:
    annotation = kind_of(annotation)
    match shape.type_name:
        case "structure":
            assert isinstance(annotation, msgspec.inspect.StructType), where
            members = {field.encode_name: field.type for field in annotation.fields}
            assert set(members) == set(shape.members), where
            for name, member in shape.members.items():
                assert_same(members[name], member, f"{where}.{name}")
        case "list":
            assert isinstance(annotation, msgspec.inspect.ListType), where
            assert_same(annotation.item_type, shape.member, f"{where}[]")
        case "map":
            assert isinstance(annotation, msgspec.inspect.DictType), where
            assert_same(annotation.key_type, shape.key, f"{where} key")
            assert_same(annotation.value_type, shape.value, f"{where} value")
        case scalar:
            names = {str: "StrType", int: "IntType", bool: "BoolType", bytes: "BytesType"}
            assert type(annotation).__name__ == names[KINDS[scalar]], where


def test_there_is_a_request_for_each_of_the_23_actions() -> None:
    assert len(ACTIONS) == 23
    assert sorted(sqs.REQUESTS) == ACTIONS


@pytest.mark.parametrize("action", ACTIONS)
def test_a_request_has_exactly_the_members_of_the_model(action: str) -> None:
    info = msgspec.inspect.type_info(sqs.REQUESTS[action])
    assert_same(info, operation(JSON, action).input_shape, action)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_request_insists_on_exactly_what_the_model_requires(action: str) -> None:
    info = msgspec.inspect.type_info(sqs.REQUESTS[action])

    assert isinstance(info, msgspec.inspect.StructType)
    required = {field.encode_name for field in info.fields if field.required}
    assert required == set(operation(JSON, action).input_shape.required_members)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_reply_has_exactly_the_members_of_the_model(action: str) -> None:
    shape = operation(JSON, action).output_shape

    if shape is None:
        assert action not in sqs.REPLIES
    else:
        assert_same(msgspec.inspect.type_info(sqs.REPLIES[action]), shape, action)


def test_a_reply_does_not_show_what_it_does_not_have() -> None:
    assert msgspec.json.encode(sqs.ReceiveMessageReply()) == b"{}"
    assert msgspec.json.encode(sqs.SendMessageReply(message_id="m")) == b'{"MessageId":"m"}'


def test_the_sources_of_a_dead_letter_queue_are_shown_even_when_there_are_none() -> None:
    assert msgspec.json.encode(sqs.ListDeadLetterSourceQueuesReply(queue_urls=[])) == b'{"queueUrls":[]}'


def test_a_cancelled_move_says_zero() -> None:
    reply = sqs.CancelMessageMoveTaskReply(approximate_number_of_messages_moved=0)

    assert msgspec.json.encode(reply) == b'{"ApproximateNumberOfMessagesMoved":0}'


def test_wire_names_keep_the_odd_spellings() -> None:
    assert sqs.wire_name("message_body") == "MessageBody"
    assert sqs.wire_name("md5_of_message_attributes") == "MD5OfMessageAttributes"
    assert sqs.wire_name("aws_account_ids") == "AWSAccountIds"
    assert sqs.wire_name("queue_owner_aws_account_id") == "QueueOwnerAWSAccountId"
