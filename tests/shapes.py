"""Awkward interests for tests of every algorithm: the topics of each node, by name."""

SHAPES: dict[str, list[list[int]]] = {
    "empty": [],
    "one node": [[0, 1, 2]],
    "one node without topics": [[]],
    "one topic": [[0]] * 6,
    "no topics": [[]] * 5,
    "some nodes without topics": [[], [0, 1], [], [1], [0], []],
    "all the same": [[0, 1, 2, 3]] * 7,
    "disjoint": [[topic] for topic in range(8)],
    "disjoint pairs": [[0], [1], [2], [0], [1], [2]],
    "star": [[0, 1, 2, 3, 4], *([topic] for topic in range(5))],
    "chain": [[topic, topic + 1] for topic in range(9)],
    "clique by pairs": [[a * 5 + b if a < b else b * 5 + a for b in range(5) if a != b] for a in range(5)],
    "huge ids": [[10**12, 3], [10**12, 10**15], [3, 10**15]],
    "more than a word": [list(range(start, start + 70)) for start in range(0, 60, 12)],
    "a thousand topics": [list(range(node, 1000, 7)) for node in range(6)],
    "one broad node": [list(range(130)), *([topic, topic + 1] for topic in range(0, 128, 16))],
}
