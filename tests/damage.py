"""Damaged files."""


def with_flipped_bits(data):
    """The bytes of a file with one flipped bit, for each byte except in the middle of unused space."""
    for offset in range(len(data)):
        if any(data[max(0, offset - 20) : offset + 20]):
            changed = bytearray(data)
            changed[offset] ^= 1 << (offset % 8)
            yield bytes(changed)
