"""Tags and permissions of a queue in SQS."""

import json

import pytest

from tests.sqs.service import ARN, OTHER, POLICY, Service

# -- tags --------------------------------------------------------------------------------------


def test_tags_are_added_replaced_and_removed(sqs: Service) -> None:
    url = sqs.create("orders", tags={"team": "a", "empty": ""})
    assert sqs.do("ListQueueTags", queue_url=url) == {"Tags": {"team": "a", "empty": ""}}

    sqs.do("TagQueue", queue_url=url, tags={"team": "b", "Team": "c"})
    sqs.do("UntagQueue", queue_url=url, tag_keys=["empty", "never-there"])
    assert sqs.do("ListQueueTags", queue_url=url) == {"Tags": {"team": "b", "Team": "c"}}

    sqs.do("UntagQueue", queue_url=url, tag_keys=["team", "Team"])
    assert sqs.do("ListQueueTags", queue_url=url) == {}


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ({}, "The request must contain the parameter Tags."),
        ({"": "x"}, "Tag keys must be between 1 and 128 characters in length."),
        ({"k" * 129: "x"}, "Tag keys must be between 1 and 128 characters in length."),
        ({"k": "v" * 257}, "Tag values must be between 0 and 256 characters in length."),
        ({"aws:k": "v"}, "Tag keys must not begin with aws:, which AWS reserves."),
        ({f"k{n}": "v" for n in range(50)}, "Too many tags added for queue orders."),
        (
            {"openq:limits": "none"},
            "The tag openq:limits must be one of strict, testing, relaxed, not 'none'.",
        ),
    ],
)
def test_tags_that_cannot_be_change_nothing(sqs: Service, tags: dict[str, str], sentence: str) -> None:
    url = sqs.create("orders", tags={"one": "1"})

    assert sqs.refused("TagQueue", queue_url=url, tags=tags).message == sentence
    assert sqs.do("ListQueueTags", queue_url=url) == {"Tags": {"one": "1"}}


@pytest.mark.parametrize("keys", [[], [""], ["k" * 129]])
def test_tags_are_removed_by_key(sqs: Service, keys: list[str]) -> None:
    url = sqs.create("orders")

    error = sqs.refused("UntagQueue", queue_url=url, tag_keys=keys)

    assert error.code == "InvalidParameterValue"
    assert error.message == "Tag keys must be between 1 and 128 characters in length."


# -- permissions -------------------------------------------------------------------------------


def _permit(sqs: Service, url: str, label: str, *actions: str, accounts: list[str] | None = None) -> None:
    sqs.do(
        "AddPermission",
        queue_url=url,
        label=label,
        actions=list(actions),
        aws_account_ids=accounts or [OTHER],
    )


def test_a_policy_is_kept_word_for_word_and_an_empty_one_removes_it(sqs: Service) -> None:
    url = sqs.create("orders", Policy=POLICY)
    assert sqs.attributes(url, "Policy") == {"Policy": POLICY}

    sqs.set(url, Policy="")
    assert sqs.attributes(url, "Policy") == {}


@pytest.mark.parametrize(
    "text",
    [
        "badjson",
        "[]",
        "null",
        '{"Version":"4532-10-17","Statement":[]}',
        '{"Version":"2012-10-17","Statement":[]}',
        POLICY.replace("Allow", "Maybe"),
        POLICY.replace("Effect", "Efect"),
    ],
)
def test_a_policy_that_is_none_is_refused(sqs: Service, text: str) -> None:
    error = sqs.refused("CreateQueue", queue_name="orders", attributes={"Policy": text})

    assert (error.code, error.message) == (
        "InvalidAttributeValue",
        "Invalid value for the parameter Policy.",
    )


def test_a_policy_has_at_most_twenty_statements(sqs: Service) -> None:
    url = sqs.create("orders")
    statement = json.loads(POLICY)["Statement"][0]
    long = json.dumps(
        {"Version": "2012-10-17", "Statement": [{**statement, "Sid": f"s{n}"} for n in range(22)]}
    )
    error = sqs.refused("SetQueueAttributes", queue_url=url, attributes={"Policy": long})
    assert (error.code, error.status) == ("OverLimit", 403)
    assert error.message == "22 statements were found in the submitted policy, max allowed is 20"

    for number in range(20):
        _permit(sqs, url, f"label{number}", "SendMessage")
    members = {"label": "label20", "actions": ["SendMessage"], "aws_account_ids": [OTHER]}
    error = sqs.refused("AddPermission", queue_url=url, **members)
    assert error.message == "21 statements were found in the submitted policy, max allowed is 20"


def test_permissions_make_the_policy_that_aws_makes(sqs: Service) -> None:
    url = sqs.create("orders")
    _permit(sqs, url, "one", "ReceiveMessage", accounts=["668614515564", OTHER])
    _permit(sqs, url, "two", "*", "SendMessage")

    assert json.loads(sqs.attributes(url, "Policy")["Policy"]) == {
        "Version": "2008-10-17",
        "Id": f"{ARN}orders/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {"AWS": ["arn:aws:iam::668614515564:root", f"arn:aws:iam::{OTHER}:root"]},
                "Action": "SQS:ReceiveMessage",
                "Resource": ARN + "orders",
            },
            {
                "Sid": "two",
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:aws:iam::{OTHER}:root"},
                "Action": ["SQS:*", "SQS:SendMessage"],
                "Resource": ARN + "orders",
            },
        ],
    }
    sqs.do("RemovePermission", queue_url=url, label="one")
    assert [each["Sid"] for each in json.loads(sqs.attributes(url)["Policy"])["Statement"]] == ["two"]
    sqs.do("RemovePermission", queue_url=url, label="two")
    assert sqs.attributes(url, "Policy") == {}


def test_a_permission_joins_a_policy_that_was_set(sqs: Service) -> None:
    url = sqs.create("orders", Policy=POLICY.replace("[{", "{").replace("}]", "}"))
    _permit(sqs, url, "mine", "SendMessage")

    sids = [each["Sid"] for each in json.loads(sqs.attributes(url)["Policy"])["Statement"]]
    assert sids == ["all", "mine"]


BAD_PERMISSIONS = [
    ({"actions": []}, "MissingParameter", "The request must contain the parameter Actions."),
    (
        {"aws_account_ids": []},
        "InvalidParameterValue",
        "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
    ),
    (
        {"aws_account_ids": ["*"]},
        "InvalidParameterValue",
        "Value [*] for parameter PrincipalId is invalid. Reason: Unable to verify.",
    ),
    (
        {"actions": ["RemovePermission"]},
        "InvalidParameterValue",
        "Value SQS:RemovePermission for parameter ActionName is invalid. "
        "Reason: Only the queue owner is allowed to invoke this action.",
    ),
    (
        {"actions": ["Nonsense"]},
        "InvalidParameterValue",
        "Value SQS:Nonsense for parameter ActionName is invalid. "
        "Reason: Please refer to the appropriate WSDL for a list of valid actions.",
    ),
    (
        {"actions": ["SendMessageBatch"]},
        "InvalidParameterValue",
        "Value SQS:SendMessageBatch for parameter ActionName is invalid. "
        "Reason: Please refer to the appropriate WSDL for a list of valid actions.",
    ),
    ({"actions": ["SendMessage"] * 8}, "OverLimit", "8 Actions were found, maximum allowed is 7."),
    (
        {"label": "taken"},
        "InvalidParameterValue",
        "Value taken for parameter Label is invalid. Reason: Already exists.",
    ),
    (
        {"label": "a b"},
        "InvalidParameterValue",
        "Value a b for parameter Label is invalid. Reason: "
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
    ),
]


@pytest.mark.parametrize(("change", "code", "sentence"), BAD_PERMISSIONS)
def test_a_permission_that_cannot_be_is_refused(
    sqs: Service, change: dict[str, object], code: str, sentence: str
) -> None:
    url = sqs.create("orders")
    _permit(sqs, url, "taken", "SendMessage")
    before = sqs.attributes(url, "Policy")
    members = {"label": "new", "actions": ["SendMessage"], "aws_account_ids": [OTHER]} | change

    error = sqs.refused("AddPermission", queue_url=url, **members)

    assert (error.code, error.message) == (code, sentence)
    assert sqs.attributes(url, "Policy") == before


def test_a_label_that_is_not_there_cannot_be_removed(sqs: Service) -> None:
    url = sqs.create("orders")
    sentence = "Value none for parameter Label is invalid. Reason: can't find label"

    error = sqs.refused("RemovePermission", queue_url=url, label="none")
    assert (error.code, error.message) == ("InvalidParameterValue", f"{sentence} on existing policy.")
    _permit(sqs, url, "other", "SendMessage")
    assert sqs.refused("RemovePermission", queue_url=url, label="none").message == f"{sentence}."
    sqs.do("RemovePermission", queue_url=url, label="other")
    assert sqs.refused("RemovePermission", queue_url=url, label="none").message == f"{sentence}."
