"""botocore's model of SQS as the specification, with the Query protocol put back into it.

AWS has since dropped the names that Query gives to list items and map entries; they are few and written
out here, from the API reference. With them botocore's own serializer and parser speak Query again.
"""

from __future__ import annotations

import copy
from typing import Any

from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel
from hypothesis import strategies as st

ITEMS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
MAPS = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name"),
    "MessageSystemAttributeMap": ("Attribute", "Name"),
    "QueueAttributeMap": ("Attribute", "Name"),
    "TagMap": ("Tag", "Key"),
}

DESCRIPTION: dict[str, Any] = Loader().load_service_model("sqs", "service-2")
JSON = ServiceModel(DESCRIPTION, "sqs")


def _as_query(description: dict[str, Any]) -> ServiceModel:
    described = copy.deepcopy(description)
    described["metadata"].update(protocol="query", protocols=["query"])
    for name, shape in described["shapes"].items():
        if name in ITEMS:
            shape["flattened"] = True
            shape["member"]["locationName"] = ITEMS[name]
        if name in MAPS:
            item, key = MAPS[name]
            shape["flattened"] = True
            shape["locationName"] = item
            shape["key"]["locationName"] = key
            shape["value"]["locationName"] = "Value"
        for member in shape.get("members", {}).values():
            if member["shape"] in ITEMS:
                member["locationName"] = ITEMS[member["shape"]]
            if member["shape"] in MAPS:
                member["locationName"] = MAPS[member["shape"]][0]
    for name, operation in described["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    return ServiceModel(described, "sqs")


QUERY = _as_query(DESCRIPTION)
ACTIONS = sorted(JSON.operation_names)


def operation(service: ServiceModel, action: str) -> OperationModel:
    found: OperationModel = service.operation_model(action)
    return found


# Values for any shape of the model, as boto3 takes and gives them.

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Cn")), min_size=1, max_size=20
) | (
    st.sampled_from(["a&b=c", "<x>", "line\r\nline", "\ttab", '"quoted"', "100%", "a+b c", "\U0001f600", "ü"])
)


def values(shape: Any, *, lists: bool = True) -> st.SearchStrategy[Any]:
    """`lists`: whether attribute values may be lists too, which SQS knows but does not take."""
    kind = shape.type_name
    if kind == "structure":
        required = {}
        optional = {}
        for name, member in shape.members.items():
            if lists or name not in ("StringListValues", "BinaryListValues"):
                where = required if name in shape.required_members else optional
                where[name] = values(member, lists=lists)
        return st.fixed_dictionaries(required, optional=optional)
    if kind == "list":
        return st.lists(values(shape.member, lists=lists), min_size=1, max_size=12)
    if kind == "map":
        key = values(shape.key, lists=lists)
        return st.dictionaries(key, values(shape.value, lists=lists), min_size=1, max_size=11)
    if kind == "blob":
        return st.binary(min_size=1, max_size=20)
    if kind in ("integer", "long"):
        return st.integers(-(2**31), 2**31 - 1)
    if kind == "boolean":
        return st.booleans()
    assert kind == "string", kind
    return TEXT


def replies(action: str) -> st.SearchStrategy[Any]:
    drawn = values(operation(JSON, action).output_shape)
    # The model lets this one be absent; ours always says it.
    always = {"ApproximateNumberOfMessagesMoved": 0} if action == "CancelMessageMoveTask" else {}
    return drawn.map(lambda reply: {**always, **reply})
