"""Discovery of running fleets: checks of brokers before links are planned."""
