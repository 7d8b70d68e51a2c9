"""Texts that command a terminal."""

from broadloom.checks import has_control_characters

SEQUENCES = (
    "\x1b[2J",  # CSI: clears the screen
    "\x1b[31m",  # a colour
    "\x1b]0;title\x07",  # OSC: sets the title
    "\x1b]52;c;cm0gLXJm\x1b\\",  # OSC 52: sets the clipboard
    "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\",  # OSC 8: a link
    "\x1bP1$r\x1b\\",  # DCS
    "\x9b31m",  # CSI in one byte
    "\x9d0;title\x9c",  # OSC in one byte
    "\x08\x08\x08",
    "\rbroadloom: done",
    "\x07",
    "\x7f",
    "\u202egpj.exe",
    "\u2066x\u2069",
)


def is_harmless(text):
    """Whether a text has no control characters except line ends and tabs."""
    return not has_control_characters(text.replace("\n", "").replace("\t", ""))
