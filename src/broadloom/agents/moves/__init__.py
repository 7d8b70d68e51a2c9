"""The control plane that moves live clients between running brokers (paper 5, sections IV-C and V)."""
