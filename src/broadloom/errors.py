"""The one error that a user of Broadloom has to know.

ValueError
InputError   what is wrong, where it is, and what would be right, in one line
"""


class InputError(ValueError):
    """Something that was given is wrong.

    The message says what is wrong, where (row, node, field), and what would be right. The command
    line prints it as one line and exits with 2; anything else that is raised is a bug.

    Examples:
        >>> raise InputError("latency row 3: rtt_ms is -4.0, expected a number above 0")
        Traceback (most recent call last):
        broadloom.errors.InputError: latency row 3: rtt_ms is -4.0, expected a number above 0
    """
