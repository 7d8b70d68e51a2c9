"""Parser of Kafka consumer groups (`kafka-consumer-groups --describe`).

A cluster counts as one broker, and a consumer group as one client.
"""

from collections.abc import Iterator

from broadloom.formats.dump_rows import DumpFormat, DumpRow, DumpText
from broadloom.model import Reason


def parse(text: DumpText) -> Iterator[DumpRow]:
    r"""One row per partition that a group reads; several partitions repeat their topic.

    Examples:
        >>> next(parse(DumpText.of("GROUP TOPIC PARTITION LAG\nbilling orders 0 12\n")))[2:4]
        ('billing', 'orders')
    """
    header: list[str] = []
    for line in text.lines():
        cells = line.split()
        if not cells or line.startswith(("Consumer group", "Warning:", "Error:", "Note:")):
            continue
        if "GROUP" in cells and "TOPIC" in cells:
            header = cells
        elif len(cells) < len(header) or not header:
            yield DumpRow(line, reason=Reason.FIELDS)
        else:
            yield DumpRow(line, None, cells[header.index("GROUP")], cells[header.index("TOPIC")])


FORMAT = DumpFormat(
    "kafka",
    "Kafka's kafka-consumer-groups --describe (table)",
    parse,
    lambda head: "GROUP" in head.split() and "TOPIC" in head.split() and "PARTITION" in head.split(),
)
