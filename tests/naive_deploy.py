"""Slow twins of deployment: networkx, every spanning tree, and messages carried hop by hop."""

import itertools

import networkx as nx

from naive_ingest import matches


def sub_overlay(members, edges, weight):
    """The graph of the links between members."""
    graph = nx.Graph()
    graph.add_nodes_from(members)
    graph.add_weighted_edges_from((u, v, weight(u, v)) for u, v in edges if u in members and v in members)
    return graph


def spanning_trees(graph):
    """Every spanning tree, as a graph."""
    for chosen in itertools.combinations(graph.edges, len(graph) - 1):
        tree = graph.edge_subgraph(chosen) if chosen else graph
        if len(tree) == len(graph) and nx.is_connected(tree):
            yield tree


def delay(tree, sent):
    """The sum of the amount that each broker sends times its distances to all members."""
    lengths = dict(nx.all_pairs_dijkstra_path_length(tree))
    return sum(amount * sum(lengths[broker].values()) for broker, amount in sent.items())


def weight(tree):
    return sum(data["weight"] for _, _, data in tree.edges(data=True))


def parts(tree, brokers):
    """The number of parts into which a tree splits some of its brokers."""
    return nx.number_connected_components(tree.subgraph(brokers))


def arrivals(links, broker, topic, most=200):
    """How often a message reaches each broker, forwarded over all links but the one it arrived on."""
    counts = {broker: 1}
    queue = [(broker, None)]
    for here, before in queue:
        for link in links:
            for (start, end), filters in link.carried():
                if start == here and end != before and any(matches(text, topic) for text in filters):
                    counts[end] = counts.get(end, 0) + 1
                    queue.append((end, here))
        if len(queue) > most:
            break
    return counts
