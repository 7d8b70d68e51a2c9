"""From a plan to real brokers: a tree a topic, native configuration, and a rehearsal before it is trusted."""
