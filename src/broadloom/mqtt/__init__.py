"""MQTT rules shared by planning and running: topic filters, packets, sessions."""
