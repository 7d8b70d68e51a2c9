"""The version, for the package's metadata and for the plans that it writes."""

VERSION = "0.1.0"
