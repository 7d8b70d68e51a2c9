"""Console: a plan that can be played with, in memory (`WhatIfSession`) and in a browser (`serve`)."""

from broadloom.console.operations import Operation, operation_of
from broadloom.console.what_if import Effect, Situation, WhatIfSession

__all__ = ["Effect", "Operation", "Situation", "WhatIfSession", "operation_of"]
