"""Link brokers in cloud regions, and print what the links cost."""

import broadloom as bl

# 60 brokers in real cloud regions, each with 3 to 12 of 100 topics, some topics far more popular than others.
interest = bl.workload.interest(nodes=60, topics=100, popularity="zipf", alpha=1.0, sizes=(3, 12), seed=7)
weights = bl.workload.weights(nodes=60, kind="regions", seed=7)

plan = bl.link(interest, weights)
print(plan.summary())

metrics = plan.metrics()
mesh = 60 * 59 // 2
print(f"a full mesh has {mesh} links; this overlay has {metrics['edges']}")
print(f"a broker has {metrics['mean_degree']:.1f} links on average, {metrics['max_degree']} at most")
print(f"a message crosses links of {metrics['mean_routing_cost']:.0f} ms in all, on average over the topics")
