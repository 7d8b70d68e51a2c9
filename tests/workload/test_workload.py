"""Generators: they follow their laws, repeat for a seed, and check their arguments."""

import math

import numpy as np
import pytest

import broadloom as bl
from broadloom import InputError
from broadloom.model import read_link_problem
from broadloom.workload import (
    REGIONS,
    churn,
    interest,
    interest_workload,
    mean_weight,
    region_latency,
    weights,
)


@pytest.mark.parametrize("popularity", ["uniform", "unif", "zipf", "exponential", "expo"])
def test_popularity_follows_its_law(popularity):
    """With one topic per node the shares of the draws are the shares of the law."""
    made = interest(40_000, 12, popularity, alpha=1.2, rate=3.0, sizes=(1, 1), seed=3)
    seen = np.diff(made.node_start) / 40_000
    assert seen == pytest.approx(interest_workload.topic_shares(12, popularity, 1.2, 3.0), abs=0.01)


def test_draws_are_successive_and_without_replacement():
    """The chance of each pair of topics is that of two draws, the second among the remaining topics."""
    shares = np.array([0.5, 0.3, 0.2])
    drawn = interest_workload.draw_topics(np.random.default_rng(0), np.full(60_000, 2), shares).reshape(-1, 2)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        expected = shares[a] * shares[b] / (1 - shares[a]) + shares[b] * shares[a] / (1 - shares[b])
        assert np.mean((drawn == (a, b)).all(axis=1)) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("law", ["uniform", "power"])
def test_sizes_follow_their_law(law):
    made = interest(50_000, 30, sizes=(3, 8), size_law=law, gamma=2.0, seed=1)
    sizes = np.bincount(np.diff(made.topic_start), minlength=9)[3:] / 50_000
    values = np.arange(3, 9.0)
    expected = np.full(6, 1 / 6) if law == "uniform" else values**-2 / (values**-2).sum()
    assert sizes == pytest.approx(expected, abs=0.01)


def test_a_node_can_want_all_topics():
    assert np.all(np.diff(interest(5, 7, "zipf", sizes=(7, 50)).topic_start) == 7)


def test_the_size_of_blocks_does_not_matter(monkeypatch):
    """The result does not depend on how many numbers are drawn at a time."""
    whole = interest(500, 40, "zipf", sizes=(2, 9), seed=9)
    monkeypatch.setattr(interest_workload, "_BLOCK", 41)
    assert interest(500, 40, "zipf", sizes=(2, 9), seed=9) == whole


def test_the_same_seed_gives_the_same_workload():
    assert interest(50, 30, sizes=(2, 5), seed=4) == interest(50, 30, sizes=(2, 5), seed=4)
    assert interest(50, 30, sizes=(2, 5), seed=4) != interest(50, 30, sizes=(2, 5), seed=5)
    assert weights(20, "planar", seed=4) == weights(20, "planar", seed=4)
    assert weights(20, "planar", seed=4) != weights(20, "planar", seed=5)


@pytest.mark.parametrize("kind", ["planar", "sites", "regions"])
def test_weights_are_scaled_to_the_mean(kind):
    made = weights(150, kind, mean=2.5)
    pairs = np.triu_indices(150, 1)
    assert made.matrix()[pairs].mean() == pytest.approx(2.5)
    assert mean_weight(made) == pytest.approx(2.5)


def test_regions_are_used_evenly():
    """Nodes are spread evenly, and latency is the documented linear function of the distance."""
    made = weights(3 * len(REGIONS), "regions")
    assert np.all(np.bincount(made.site) == 3)
    names = [region.name for region in REGIONS]
    assert len(set(names)) == len(names)
    latency = region_latency()
    paris, sydney = names.index("aws/eu-west-3"), names.index("aws/ap-southeast-2")
    assert (latency[paris, sydney] - 1.0) / 0.015 == pytest.approx(16_960, rel=0.01)
    assert np.all(np.diag(latency) == 0.5)


@pytest.mark.data
def test_region_latency_is_close_to_measured_latency(data):
    """Half of the pairs that a cloud measured are within 25 % of the linear function."""
    measured = np.load(data / "latency_aws_regions.npz")
    ours = {region.name.removeprefix("aws/"): i for i, region in enumerate(REGIONS)}
    common = [i for i, name in enumerate(measured["region"]) if str(name) in ours]
    index = [ours[str(measured["region"][i])] for i in common]
    pairs = np.triu_indices(len(common), 1)
    ratio = (region_latency()[np.ix_(index, index)] / measured["rtt_ms"][np.ix_(common, common)])[pairs]
    assert len(common) > 25
    assert np.median(np.abs(np.log(ratio))) < math.log(1.25)


@pytest.mark.data
def test_real_matrices_can_be_loaded(data):
    made = weights(200, data / "latency_ripe_atlas631_2023-07-02.npz", mean=1.0, floor=0.1, missing="path")
    assert made.node_count == 200
    with pytest.raises(InputError, match="no latency"):
        weights(None, data / "latency_wondernetwork_2020-07-19.npz")


def test_matrix_files(tmp_path):
    """Npz and csv, with and without names; directions are combined; missing pairs are refused or filled."""
    matrix = np.array([[0, 1, 9.0], [3, 0, 2], [np.nan, 2, 0]])
    np.savez(tmp_path / "m.npz", rtt_ms=matrix, other=np.eye(3))
    (tmp_path / "m.csv").write_text("name,a,b,c\na,0,1,9\nb,3,0,2\nc,,2,0\n")
    (tmp_path / "plain.csv").write_text("0,1,9\n3,0,2\n,2,0\n")
    expected = [[0, 2, 9], [2, 0, 2], [9, 2, 0]]
    for name in ("m.npz", "m.csv", "plain.csv"):
        assert weights(kind=tmp_path / name).matrix().tolist() == expected
    matrix[0, 2] = np.nan
    np.savez(tmp_path / "hole.npz", rtt_ms=matrix)
    assert weights(kind=tmp_path / "hole.npz", missing="path").of([0], [2]) == 4
    assert weights(kind=tmp_path / "hole.npz", missing="path", symmetric="min").of([0], [1]) == 1
    assert weights(kind=tmp_path / "m.npz", symmetric="max", floor=2.5).of([0, 1], [1, 2]).tolist() == [
        3,
        2.5,
    ]


def test_events_are_about_present_nodes():
    """Indices are never reused, no node leaves twice, and topics change as the events say."""
    before = interest(30, 15, "zipf", sizes=(2, 6))
    present = {u: set(before.topics_of(u).tolist()) for u in range(30)}
    next_node = 30
    for seq, event in enumerate(churn(before, rounds=600, join=0.5, change=0.4, seed=8)):
        assert event.seq == seq
        if event.kind == "join":
            assert event.node == next_node
            assert event.topics
            present[next_node] = set(event.topics)
            next_node += 1
        elif event.kind == "leave":
            del present[event.node]
        elif event.kind == "subscribe":
            assert not present[event.node] & set(event.topics)
            present[event.node] |= set(event.topics)
        else:
            assert present[event.node] >= set(event.topics)
            present[event.node] -= set(event.topics)
    assert next_node > 100


def test_churn_follows_its_chances():
    """Joins and changes are as frequent as their chances, and nodes that join want popular topics."""
    wanted = interest(300, 30, "zipf", alpha=1.5, sizes=(2, 6))
    events = churn(wanted, rounds=4000, join=0.5, change=0.25, seed=3)
    kinds = {kind: sum(event.kind == kind for event in events) for kind in ("join", "leave", "subscribe")}
    assert kinds["join"] / 4000 == pytest.approx(0.375, abs=0.03)
    assert kinds["leave"] / 4000 == pytest.approx(0.375, abs=0.03)
    assert kinds["subscribe"] / 4000 == pytest.approx(0.125, abs=0.02)
    joined = np.bincount([topic for event in events if event.kind == "join" for topic in event.topics])
    popular = np.diff(wanted.node_start) / wanted.subscription_count
    assert np.corrcoef(joined, popular[: len(joined)])[0, 1] > 0.95


@pytest.mark.parametrize(("nodes", "topics"), [(0, 3), (0, 0), (1, 0), (3, 1)])
def test_churn_of_tiny_interests(nodes, topics):
    wanted = bl.Interest.from_lists([[]] * nodes, topics=topics)
    assert len(churn(wanted, rounds=20, change=0.3)) == 20


@pytest.mark.parametrize("kind", ["planar", "sites", "regions", "none"])
def test_a_written_workload_can_be_read(tmp_path, kind):
    wanted = interest(130, 20, sizes=(1, 4))
    made = None if kind == "none" else weights(130, kind, seed=2)
    bl.workload.write(tmp_path / "tables", wanted, made, churn(wanted, 5), in_regions=kind == "regions")
    back = read_link_problem(tmp_path / "tables")
    assert back.interest.node_ids == wanted.node_ids
    for node in range(130):
        ids = {wanted.topic_ids[topic] for topic in wanted.topics_of(node)}
        assert {back.interest.topic_ids[topic] for topic in back.interest.topics_of(node)} == ids
    assert back.weights.matrix() == pytest.approx(
        (bl.Weights.uniform(130) if made is None else made).matrix(), rel=1e-15
    )


BAD = {
    "popularity": (lambda: interest(popularity="pareto"), "popularity is 'pareto'"),
    "sizes": (lambda: interest(sizes=(9, 3)), "subscription sizes 9 to 3"),
    "too many": (lambda: interest(topics=5, sizes=(6, 9)), "start at 6, above the 5 topics"),
    "law": (lambda: interest(size_law="normal"), "size_law is 'normal'"),
    "nodes": (lambda: interest(nodes=-1), "nodes is -1"),
    "topics": (lambda: interest(topics=-1), "topics is -1"),
    "alpha": (lambda: interest(popularity="zipf", alpha=math.nan), "alpha is nan"),
    "kind": (lambda: weights(10, "torus"), "weights 'torus' are neither planar, sites, regions nor the path"),
    "no file": (lambda: weights(10, "nowhere.npz"), "nowhere.npz cannot be read"),
    "option": (lambda: weights(10, "planar", site_size=3), "no option 'site_size'"),
    "sizes of three": (lambda: interest(sizes=(1, 2, 3)), "subscription sizes are (1, 2, 3)"),
    "half a size": (lambda: interest(sizes=(1.5, 2)), "a subscription size is 1.5"),
    "gamma": (lambda: interest(size_law="power", gamma=math.nan), "gamma is nan"),
    "seed": (lambda: interest(seed=-1), "seed is -1"),
    "mean": (lambda: weights(10, mean=0), "mean is 0"),
    "minus nodes": (lambda: weights(-5, "sites"), "nodes is -5"),
    "site size": (lambda: weights(10, "sites", site_size=0), "site_size is 0"),
    "join": (lambda: churn(interest(2, 2, sizes=(1, 1)), join=2), "join is 2"),
    "rounds": (lambda: churn(interest(2, 2, sizes=(1, 1)), rounds=-1), "rounds is -1"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(make, words):
    with pytest.raises(InputError) as caught:
        make()
    assert words in str(caught.value)


def test_a_workload_without_nodes_can_be_written(tmp_path):
    assert weights(0).node_count == 0
    bl.workload.write(tmp_path / "t", interest(0, 5, sizes=(1, 2)), weights(0, "regions"), in_regions=True)
    assert read_link_problem(tmp_path / "t").interest.node_count == 0


def test_topics_keep_their_order_and_topics_without_nodes_are_kept(tmp_path):
    wanted = bl.Interest.from_lists([[10], [9, 10]], topics=12)
    bl.workload.write(tmp_path / "t", wanted)
    assert read_link_problem(tmp_path / "t").interest == wanted


def test_scaled_sites_are_written(tmp_path):
    made = weights(250, "sites", mean=2.0)
    bl.workload.write(tmp_path / "t", interest(250, 20, sizes=(1, 4)), made)
    assert read_link_problem(tmp_path / "t").weights.matrix() == pytest.approx(made.matrix())


@pytest.mark.parametrize("name", ["m.npz", "m.csv"])
def test_a_matrix_file_without_permission_is_a_storage_error(tmp_path, monkeypatch, name):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(bl.StorageError, match="cannot be read: Permission denied"):
        weights(kind=tmp_path / name)


@pytest.mark.parametrize("name", ["m.npz", "m.csv"])
def test_damaged_matrix_files_are_input_errors(tmp_path, name):
    for content in (b"PK\x03\x04abc", b"\xff\xfe\x00", b"\x93NUMPY"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            weights(kind=tmp_path / name)
        assert "pickle" not in str(caught.value)


def test_a_floor_does_not_hide_a_negative_latency(tmp_path):
    (tmp_path / "m.csv").write_text("0,-4\n-4,0\n")
    with pytest.raises(InputError, match=r"latency of 0 and 1 is -4\.0"):
        weights(kind=tmp_path / "m.csv", floor=1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,1\n1,x\n", "row 2, field 2 is 'x'"),
        ("a,b\n0,1\n1,x\n", "row 3, field 2 is 'x'"),
        (",a,b\na,0,1\nb,1,x\n", "row 3, field 3 is 'x'"),
        ("0,1\n1\n", "row 2 has 1 fields, the first has 2"),
        ("0," + "1" * 200_000, "is not a .csv file, or is damaged"),
        ("0,1,2\n1,0,2\n", "shape (2, 3)"),
        ("", "shape (0,)"),
    ],
)
def test_errors_in_matrix_files_are_located(tmp_path, text, words):
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        weights(kind=tmp_path / "m.csv")
    assert words in str(caught.value)
