"""The properties of a message, as every layer passes them on."""

from __future__ import annotations

from collections.abc import Mapping


class Properties:
    """Attributes and publisher of a message. The engine never needs them: they stay on disk with the body.

    Never changed in place, so messages with equal properties may share one object. A message published
    through AMQP keeps the original bytes in `amqp_properties`; `attributes` are decoded from them on demand.
    """

    __slots__ = ("_attributes", "amqp_properties", "packed", "publisher")

    def __init__(
        self,
        attributes: Mapping[str, object] | None,
        publisher: str | None = None,
        amqp_properties: bytes | None = None,
    ) -> None:
        self._attributes = attributes
        self.publisher = publisher
        self.amqp_properties = amqp_properties
        self.packed: bytes | None = None  # the encoded form, once it was needed

    @classmethod
    def from_amqp(cls, amqp_properties: bytes, publisher: str | None = None) -> Properties:
        return cls(None, publisher, amqp_properties)

    @property
    def attributes(self) -> Mapping[str, object]:
        if self._attributes is None:
            # Imported late: embedded programs never need it, and it is slow to load.
            from .amqp_fields import attributes_of

            self._attributes = {} if self.amqp_properties is None else attributes_of(self.amqp_properties)
        return self._attributes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Properties):
            return NotImplemented
        if self.amqp_properties != other.amqp_properties or self.publisher != other.publisher:
            return False
        return self.amqp_properties is not None or self.attributes == other.attributes

    __hash__ = None  # type: ignore[assignment]
