"""The link agent: holds a plan's links between running MQTT 5 brokers, and changes them live (paper 3)."""
