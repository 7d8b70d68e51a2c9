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


def publisher_links(lists, names, edges, weight):
    """One-way hops by which every broker publishes every group: broker -> {group: receiver}, and new links.

    Brokers in the order of names use their links, the lightest first; then they open the link of least weight
    per group that is still missing. A link that another broker has opened to a broker counts as its own.
    """
    everything = sorted(set().union(*lists)) if lists else []
    group_of = {text: min(_overlapping(text, everything)) for text in everything}
    wants = [{group_of[text] for text in texts} for texts in lists]
    linked = {u: {v for edge in edges for v in edge if u in edge and v != u} for u in range(len(lists))}
    hops, new = {}, []
    for b in sorted(range(len(lists)), key=lambda u: names[u]):
        left = set(group_of.values()) - wants[b]
        hops[b] = {}
        for r in sorted(linked[b], key=lambda r: (weight(b, r), names[r])):
            hops[b] |= dict.fromkeys(left & wants[r], r)
            left -= wants[r]
        while left:
            useful = [r for r in range(len(lists)) if wants[r] & left]
            r = min(useful, key=lambda r: (weight(b, r) / len(wants[r] & left), names[r]))
            hops[b] |= dict.fromkeys(left & wants[r], r)
            left -= wants[r]
            new.append((min(b, r), max(b, r)))
            linked[r].add(b)
    return hops, new


def _overlapping(text, everything):
    """All filters that a chain of overlaps connects with a filter."""
    found = {text}
    while more := {
        other for other in everything if other not in found and any(overlap(one, other) for one in found)
    }:
        found |= more
    return found


def overlap(one, other):
    """Whether two filters match a common topic, tried on all topics of up to four levels of their words."""
    words = {word for text in (one, other) for word in text.split("/") if word not in ("+", "#")} | {"z"}
    return any(
        matches(one, topic) and matches(other, topic)
        for size in range(1, 5)
        for topic in map("/".join, itertools.product(sorted(words), repeat=size))
    )
