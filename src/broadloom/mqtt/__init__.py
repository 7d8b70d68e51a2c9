"""MQTT rules and clients: topic filters, endpoints, packets, client sessions."""
