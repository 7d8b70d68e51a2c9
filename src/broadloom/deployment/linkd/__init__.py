"""The link agent: holds the links of a plan between running MQTT 5 brokers, and changes them live (paper 3)."""
