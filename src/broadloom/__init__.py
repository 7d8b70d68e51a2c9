"""Broadloom plans, deploys and maintains the overlay of a wide-area publish/subscribe system."""
