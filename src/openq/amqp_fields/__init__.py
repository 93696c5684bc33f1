"""AMQP's field tables and message properties as Python values, and as the other protocols show them.

A message that was published by AMQP keeps its properties as bytes (`amqp_properties`): property flags and
property list, the content header after class, weight and body size.

    tables.py           field tables: bytes to values, and back
    content_header.py   the properties of a message: decode, encode, change headers
    shown.py            as the other protocols show them
    plain.py            which properties concern nobody but the consumer
    json_values.py      values as JSON
"""

from __future__ import annotations

from .content_header import FIELDS as FIELDS
from .content_header import OCTET_KIND as OCTET_KIND
from .content_header import SHORT_KIND as SHORT_KIND
from .content_header import TABLE_KIND as TABLE_KIND
from .content_header import TIME_KIND as TIME_KIND
from .content_header import AmqpProperties as AmqpProperties
from .content_header import decode as decode
from .content_header import encode as encode
from .content_header import with_headers as with_headers
from .json_values import from_json as from_json
from .json_values import to_json as to_json
from .plain import PlainShapes as PlainShapes
from .plain import is_plain as is_plain
from .shown import ATTRIBUTE_PROPERTIES as ATTRIBUTE_PROPERTIES
from .shown import CONTENT_TYPES as CONTENT_TYPES
from .shown import DEDUP_HEADER as DEDUP_HEADER
from .shown import DELAY_HEADERS as DELAY_HEADERS
from .shown import GROUP_HEADER as GROUP_HEADER
from .shown import HIDDEN_HEADERS as HIDDEN_HEADERS
from .shown import MAX_ID_CHARS as MAX_ID_CHARS
from .shown import amqp_properties_of as amqp_properties_of
from .shown import attributes_from as attributes_from
from .shown import attributes_of as attributes_of
from .shown import dedup_of as dedup_of
from .shown import encoding_of as encoding_of
from .shown import group_of as group_of
from .shown import plain_value as plain_value
from .tables import FIXED_SIZES as FIXED_SIZES
from .tables import MAX_DEPTH as MAX_DEPTH
from .tables import MAX_SHORT as MAX_SHORT
from .tables import Long as Long
from .tables import MalformedProperties as MalformedProperties
from .tables import Timestamp as Timestamp
from .tables import decode_table as decode_table
from .tables import decode_value as decode_value
from .tables import encode_table as encode_table
