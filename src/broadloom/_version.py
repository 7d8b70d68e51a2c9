"""Version of the package; plans record it."""

VERSION = "0.1.0"
