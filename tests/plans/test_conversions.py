"""Conversions of plans: NetworkX, Arrow, pandas, GeoJSON, GraphML and pictures hold what the plan holds."""

import builtins
import itertools
import json
import math
import sys
from dataclasses import replace

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError, Interest, MissingExtraError, Overlay, Plan, StorageError, Weights
from broadloom.checks import has_control_characters
from broadloom.plans.conversions import split_line
from strategies import instances

REGIONS = ("aws/eu-west-3", "aws/us-east-1", "aws/ap-northeast-1")


def _plan(nodes=None, ids=("a", "b", "c"), topics=("x",)):
    interest = Interest.from_lists([list(topics)] * 3, node_ids=ids)
    overlay = Overlay.from_edges(3, [(0, 2), (0, 1)])
    return Plan(interest, Weights.dense([[0, 1, 2], [1, 0, 3], [2, 3, 0]]), overlay, "hand", nodes=nodes)


def _plan_on_map(latitudes, longitudes, **columns):
    return _plan(pa.table({"node": ["a", "b", "c"], "lat": latitudes, "lon": longitudes, **columns}))


# NetworkX.


@given(instances())
@settings(max_examples=30, deadline=None)
def test_the_graph_has_the_nodes_links_weights_and_topics_of_the_plan(instance):
    """NetworkX finds the same degrees, weights and connected topics as the plan."""
    plan = bl.link(*instance, algorithm="gm")
    graph = plan.to_networkx()
    names = list(graph.nodes)
    assert list(map(str, names)) == list(plan.interest.node_ids)
    assert [degree for _, degree in graph.degree()] == plan.overlay.degrees().tolist()
    assert math.isclose(graph.size(weight="weight"), plan.total_weight, rel_tol=1e-12)
    by_rank = sorted(graph.edges(data=True), key=lambda edge: edge[2]["rank"])
    assert [sorted(map(names.index, edge[:2])) for edge in by_rank] == plan.edges.tolist()
    for u, v, values in by_rank:
        assert set(values["topics"]) == set(graph.nodes[u]["topics"]) & set(graph.nodes[v]["topics"])
    for topic in plan.interest.topic_ids:
        members = [node for node in graph if topic in graph.nodes[node]["topics"]]
        assert not members or nx.is_connected(graph.subgraph(members))


def test_nodes_are_numbers_if_the_interest_has_no_ids_and_ids_otherwise():
    assert list(_plan(ids=None).to_networkx()) == [0, 1, 2]
    assert list(_plan(ids=("2", "1", "0")).to_networkx()) == ["2", "1", "0"]


def test_nodes_have_their_site_coordinates_and_position():
    plan = _plan(pa.table({"node": ["a", "b", "c"], "site": [*REGIONS[:2], None], "x": [1, 2, None]}))
    nodes = plan.to_networkx().nodes
    assert nodes["a"] == {
        "topics": ["x"],
        "site": "aws/eu-west-3",
        "x": 1.0,
        "lat": 48.86,
        "lon": 2.35,
        "pos": (2.35, 48.86),
    }
    assert nodes["c"] == {"topics": ["x"]}
    points = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    on_plane = replace(plan, nodes=None, weights=Weights.euclidean(points)).to_networkx()
    assert on_plane.nodes["b"] == {
        "topics": ["x"],
        "x": 4.0,
        "y": 5.0,
        "z": 6.0,
        "x3": 7.0,
        "pos": (4.0, 5.0),
    }
    assert replace(plan, nodes=None, weights=Weights.sites([1, 0, 1])).to_networkx().nodes["a"] == {
        "topics": ["x"],
        "site": "site-1",
    }


# Tables.


def test_the_table_is_the_edges_table_of_a_saved_plan(tmp_path):
    plan = _plan()
    plan.save(tmp_path / "plan")
    assert plan.to_table().equals(pa.parquet.read_table(tmp_path / "plan" / "edges.parquet"))
    assert plan.to_table().schema.types == [pa.string(), pa.string(), pa.float64(), pa.int32()]


def test_the_table_becomes_a_frame_of_pandas():
    expected = pd.DataFrame(
        {"u": ["a", "a"], "v": ["c", "b"], "weight": [2.0, 1.0], "rank": np.array([0, 1], np.int32)}
    )
    pd.testing.assert_frame_equal(_plan().to_table().to_pandas(), expected)


def test_a_plan_without_links_has_an_empty_table():
    plan = bl.link(Interest.from_lists([]), algorithm="gm")
    assert plan.to_table().num_rows == 0
    assert len(plan.to_networkx()) == 0


# GeoJSON.


def _check_position(position):
    """RFC 7946, section 3.1.1: longitude, then latitude."""
    assert len(position) == 2
    assert all(type(number) is float for number in position)
    longitude, latitude = position
    assert -180 <= longitude <= 180
    assert -90 <= latitude <= 90


def _check_geometry(geometry):
    """RFC 7946, sections 3.1.2, 3.1.4, 3.1.5 and 3.1.9."""
    assert set(geometry) == {"type", "coordinates"}
    coordinates = geometry["coordinates"]
    if geometry["type"] == "Point":
        _check_position(coordinates)
        return
    lines = {"LineString": [coordinates], "MultiLineString": coordinates}[geometry["type"]]
    assert lines
    for line in lines:
        assert len(line) >= 2
        for position in line:
            _check_position(position)
        for one, other in itertools.pairwise(line):
            assert abs(one[0] - other[0]) <= 180, "a line crosses the antimeridian"


def _check_geojson(collection):
    """RFC 7946, sections 3.2 and 3.3, of the text that a file would hold; it has no NaN."""
    collection = json.loads(json.dumps(collection, allow_nan=False))
    assert set(collection) == {"type", "features"}
    assert collection["type"] == "FeatureCollection"
    for feature in collection["features"]:
        assert set(feature) - {"id"} == {"type", "geometry", "properties"}
        assert feature["type"] == "Feature"
        assert isinstance(feature["properties"], dict)
        if feature["geometry"] is not None:
            _check_geometry(feature["geometry"])


DEGREES = st.tuples(st.floats(-90, 90), st.floats(-180, 180) | st.sampled_from([-180.0, 180.0]))


@given(st.lists(DEGREES, min_size=3, max_size=3))
@settings(max_examples=200, deadline=None)
@example([(0.0, 180.0), (10.0, -180.0), (10.0, -179.0)])
@example([(0.0, -180.0), (10.0, 180.0), (10.0, 1.0)])
def test_geojson_is_valid_wherever_the_brokers_are(positions):
    collection = _plan().to_geojson(positions)
    _check_geojson(collection)
    brokers, links = collection["features"][:3], collection["features"][3:]
    assert [feature["id"] for feature in brokers] == ["a", "b", "c"]
    assert [feature["geometry"]["coordinates"][::-1] for feature in brokers] == [list(p) for p in positions]
    assert [(f["properties"]["u"], f["properties"]["v"]) for f in links] == [("a", "c"), ("a", "b")]
    assert [(f["properties"]["weight"], f["properties"]["rank"]) for f in links] == [(2.0, 0), (1.0, 1)]


@given(DEGREES, DEGREES)
@settings(max_examples=300, deadline=None)
def test_the_parts_of_a_line_join_its_ends_on_the_shorter_way(one, other):
    """Its length in degrees of longitude is the shorter way around, and parts meet at one latitude."""
    parts = split_line(one[::-1], other[::-1])
    around = abs(one[1] - other[1])
    assert sum(abs(p[0] - q[0]) for p, q in parts) == pytest.approx(min(around, 360 - around), abs=1e-9)
    assert parts[0][0][1] == one[0]
    assert parts[-1][1][1] == other[0]
    assert (parts[0][0][0] - one[1]) % 360 == 0
    assert (parts[-1][1][0] - other[1]) % 360 == 0
    if len(parts) == 2:
        (_, leave), (enter, _) = parts
        assert (abs(leave[0]), leave[0]) == (180, -enter[0])
        assert leave[1] == enter[1]
        assert min(one[0], other[0]) - 1e-9 <= leave[1] <= max(one[0], other[0]) + 1e-9


def test_positions_come_from_the_nodes_or_from_cloud_regions():
    on_map = _plan_on_map([48.9, 35.7, -36.8], [2.4, 139.7, 174.8])
    assert on_map.to_geojson()["features"][0]["geometry"]["coordinates"] == [2.4, 48.9]
    by_region = _plan(pa.table({"node": ["a", "b", "c"], "site": REGIONS})).to_geojson()
    assert by_region["features"][0]["geometry"]["coordinates"] == [2.35, 48.86]
    assert by_region["features"][0]["properties"] == {"node": "a", "topics": 1, "site": "aws/eu-west-3"}
    _check_geojson(by_region)


def test_brokers_without_a_position_and_their_links_have_no_geometry():
    collection = _plan_on_map([48.9, None, 1.0], [2.4, None, 2.0]).to_geojson()
    _check_geojson(collection)
    assert [feature["geometry"] is None for feature in collection["features"]] == [
        False,
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (None, "the plan has no geographic positions; give positions, or columns lat and lon"),
        ({}, "no geographic positions"),
        ([(0, 0)] * 2, r"shape \(2, 2\); give two numbers for each of 3 nodes"),
        ([(91, 0)] * 3, r"node 'a' is at latitude 91.0, longitude 0.0 \(and 2 more like it\)"),
        ([(0, np.inf)] * 3, "longitudes -180 to 180"),
        ({"d": (0, 0)}, "position of 'd', which is not a node"),
        ("abc", "positions are 'abc'; give an array of numbers"),
        ([(10**400, 0)] * 3, "give an array of numbers"),
        (np.ma.masked_array(np.zeros((3, 2)), mask=True), "no geographic positions"),
    ],
)
def test_wrong_or_missing_positions_are_one_line(positions, message):
    with pytest.raises(InputError, match=message) as raised:
        _plan().to_geojson(positions)
    assert "\n" not in str(raised.value)


def test_an_empty_plan_is_an_empty_collection():
    assert bl.link(Interest.from_lists([]), algorithm="gm").to_geojson()["features"] == []


# GraphML.


@given(instances())
@settings(max_examples=30, deadline=None)
def test_networkx_reads_the_graphml_file(tmp_path_factory, instance):
    """The graph in the file is that of `to_networkx`: nodes, links and attributes, topics as JSON."""
    plan = bl.link(*instance, algorithm="gm")
    path = tmp_path_factory.mktemp("graphs") / "plan.graphml"
    plan.to_graphml(path)
    read = nx.read_graphml(path)
    expected = plan.to_networkx()
    assert not read.is_directed()
    assert list(read) == list(map(str, expected))
    for node, values in expected.nodes(data=True):
        values.pop("pos", None)
        assert dict(read.nodes[str(node)]) == values | {"topics": json.dumps(values["topics"])}
    assert read.number_of_edges() == expected.number_of_edges()
    for u, v, values in expected.edges(data=True):
        assert dict(read.edges[str(u), str(v)]) == values | {"topics": json.dumps(values["topics"])}


XML_TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
XML_ID = XML_TEXT.filter(lambda text: not has_control_characters(text))


@given(st.lists(XML_ID, min_size=3, max_size=3, unique=True), XML_TEXT)
@settings(max_examples=100, deadline=None)
@example(["<a>", '"&"', "space  end "], "\x00</data>\x85\u2028\ufffe")
def test_any_id_that_xml_can_hold_survives_and_others_are_refused(tmp_path_factory, ids, topic):
    path = tmp_path_factory.mktemp("graphs") / "plan.graphml"
    plan = _plan(ids=ids, topics=(topic,))
    legal = all(character not in "\ufffe\uffff" for character in "".join(ids))
    if not legal:
        with pytest.raises(InputError, match="a character that XML cannot hold"):
            plan.to_graphml(path)
        assert not path.exists()
        return
    plan.to_graphml(path)
    read = nx.read_graphml(path)
    assert list(read) == ids
    assert json.loads(read.nodes[ids[0]]["topics"]) == [topic]


def test_a_graphml_file_that_cannot_be_written_is_an_error_of_ours(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    for wrong in (tmp_path / "file" / "plan.graphml", tmp_path, 3):
        with pytest.raises(InputError, match=r"cannot write|not a file|the path is 3"):
            _plan().to_graphml(wrong)
    _plan().to_graphml(tmp_path / "new folder" / "plan.graphml")
    assert [path.name for path in (tmp_path / "new folder").iterdir()] == ["plan.graphml"]

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device"):
        _plan().to_graphml(tmp_path / "plan.graphml")


# Pictures.


@pytest.fixture
def axes():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    return figure.subplots()


def _drawn(axes):
    """The points and the lines on the axes."""
    lines, points = axes.collections
    return points.get_offsets().tolist(), [line.tolist() for line in lines.get_segments()]


def test_a_plot_shows_brokers_and_links_at_their_positions(axes):
    positions = [(0.0, 0.0), (1.0, 2.0), (3.0, 1.0)]
    assert _plan().plot(ax=axes, positions=positions) is axes
    points, lines = _drawn(axes)
    assert points == [list(point) for point in positions]
    assert lines == [[[0.0, 0.0], [3.0, 1.0]], [[0.0, 0.0], [1.0, 2.0]]]
    assert [text.get_text() for text in axes.texts] == ["a", "b", "c"]
    axes.figure.canvas.draw()


def test_a_map_has_longitude_to_the_east_and_cuts_lines_at_the_antimeridian(axes):
    _plan_on_map([0.0, 0.0, 10.0], [170.0, 160.0, -170.0]).plot(ax=axes)
    points, lines = _drawn(axes)
    assert points == [[170.0, 0.0], [160.0, 0.0], [-170.0, 10.0]]
    assert lines[:2] == [[[170.0, 0.0], [180.0, 5.0]], [[-180.0, 5.0], [-170.0, 10.0]]]
    assert axes.get_xlabel() == "longitude"


def test_coordinates_are_drawn_and_nodes_without_them_get_a_layout(axes):
    points = [[0.0, 1.0, 9.0], [4.0, 5.0, 9.0], [8.0, 9.0, 0.0]]
    replace(_plan(), weights=Weights.euclidean(points)).plot(ax=axes, labels=False)
    assert _drawn(axes)[0] == [point[:2] for point in points]
    assert not axes.texts
    drawn = []
    for _ in range(2):
        axes.clear()
        _plan().plot(ax=axes)
        drawn.append(_drawn(axes)[0])
    assert drawn[0] == drawn[1], "the layout repeats"
    assert np.isfinite(drawn[0]).all()


def test_ids_in_a_plot_are_plain_text(axes):
    """A dollar sign starts no formula, which could be wrong and end the drawing."""
    _plan(ids=("$\\frac$", "b", "c")).plot(ax=axes, positions=[(0, 0), (1, 1), (2, 0)])
    axes.figure.canvas.draw()


def test_a_plot_makes_its_own_axes_if_there_are_none():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    axes = _plan().plot(positions=[(0, 0), (1, 1), (2, 0)])
    assert axes.get_title() == "hand: 3 brokers, 2 links"
    pyplot.close(axes.figure)


def test_a_plot_refuses_a_node_without_a_position(axes):
    with pytest.raises(InputError, match="node 'b' has no position"):
        _plan().plot(ax=axes, positions={"a": (0, 0), "c": (1, 1)})
    with pytest.raises(InputError, match="labels is 'no'; give true or false"):
        _plan().plot(ax=axes, labels="no")
    with pytest.raises(InputError, match="ax is a int; give axes of matplotlib"):
        _plan().plot(ax=3)


@pytest.mark.parametrize(
    ("package", "call", "message"),
    [
        ("networkx", lambda plan: plan.to_networkx(), 'pip install "broadloom[networkx]"'),
        ("matplotlib", lambda plan: plan.plot(), 'pip install "broadloom[plot]"'),
    ],
)
def test_a_missing_package_is_one_line_that_names_its_extra(monkeypatch, package, call, message):
    real_import = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real_import(name, *arguments, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError) as raised:
        call(_plan())
    assert f"{package} is not installed" in str(raised.value)
    assert str(raised.value).endswith(message)
    assert "\n" not in str(raised.value)
