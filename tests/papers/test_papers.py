"""Figures of the papers at small size: the order of the algorithms, and the parts of a reproduction."""

import html
import json
import re

import numpy as np
import pytest

import broadloom as bl
from broadloom.papers import (
    FIGURES,
    figures_of,
    paper1_weighted_overlays,
    paper2_low_degree,
    paper3_shadows,
    paper4_assignment,
    paper5_markets,
)
from broadloom.papers.figures import Claim, FigureRows
from broadloom.papers.paper1_weighted_overlays import GENERATED, MEASURED, latencies
from broadloom.papers.reproduction import (
    curves_of,
    draw_panel,
    read_case,
    write_case,
    write_figure,
    write_page,
)


def rows_of(figure, *cases):
    """The rows of some cases of a figure."""
    return FigureRows(tuple(row for case in cases for row in figure.run(case)))


def test_weighted_overlays():
    """Paper 1: GrMAW is below PdMAW and far below TrMAW, and lighter than GM, which has fewer edges."""
    case = paper1_weighted_overlays._case(0, nodes=120, topics=60, popularity="zipf") | {
        "fewest": 10,
        "most": 30,
    }
    rows = rows_of(paper1_weighted_overlays.FIG4, case)
    gr, pd, tr = (rows.mean("weighted_mean_degree", algorithm=name) for name in ("grmaw", "pdmaw", "trmaw"))
    assert gr < pd < tr
    greedy = rows_of(paper1_weighted_overlays.FIG8, case)
    weight = {name: greedy.mean("weighted_mean_degree", algorithm=name) for name in ("grmaw", "gm")}
    degree = {name: greedy.mean("mean_degree", algorithm=name) for name in ("grmaw", "gm")}
    assert weight["grmaw"] < weight["gm"]
    assert degree["gm"] < degree["grmaw"]


def test_reverse_delete_and_sites():
    """Paper 1: reverse delete only takes away; divide and conquer is hardly heavier than GrMAW."""
    case = paper1_weighted_overlays._case(1, nodes=100, topics=60) | {"fewest": 10, "most": 30}
    rows = rows_of(paper1_weighted_overlays.FIG7, case)
    assert rows.mean("mean_degree", algorithm="pdrdmaw") < rows.mean("mean_degree", algorithm="pdmaw")
    rows = rows_of(paper1_weighted_overlays.FIG9, paper1_weighted_overlays._case(0, nodes=300, topics=60))
    assert (
        rows.ratio("weighted_mean_degree", {"algorithm": "dcmaw"}, paper1_weighted_overlays.GR, "nodes")
        < 1.05
    )


def test_low_degrees():
    """Paper 2: Low-ODA is between GM and MinMax-ODA on average, its maximum below GM's; diameter 2 costs."""
    rows = rows_of(paper2_low_degree.FIG1, *(paper2_low_degree._case(seed, 150) for seed in range(3)))
    assert paper2_low_degree.FIG2.claims[0].ours(rows) == 1
    assert rows.mean("max_degree", algorithm="low-oda") < rows.mean("max_degree", algorithm="gm")
    rows = rows_of(
        paper2_low_degree.FIG5, *(paper2_low_degree._case(seed, 60, 20, "unif") for seed in range(3))
    )
    gm, second, first = (rows.mean("mean_degree", algorithm=name) for name in ("gm", "cd-oda-2", "cd-oda"))
    assert gm < second < first


def test_markets():
    """Paper 5: all are cheaper than chance, and ours is the cheapest."""
    rows = rows_of(paper5_markets.FIG9, paper5_markets._case(0, 300))
    reduction = {name: rows.mean("reduction", algorithm=name) for name in paper5_markets.ALGORITHMS}
    assert min(reduction.values()) > 1
    assert max(reduction, key=reduction.get) == "broadloom"


def test_churn():
    """Paper 3: shadows keep degrees near a fresh build's, with few repairs, in a small part of its time."""
    case = paper3_shadows._case(0, quick=True, rebuilds=10) | {"nodes": 150, "rounds": 40}
    rows = rows_of(paper3_shadows.FIG6, case)
    assert rows.mean("repair", algorithm="shadow", kind="join") < rows.mean(
        "repair", algorithm="shadow", kind="leave"
    )
    assert rows.mean("mean_degree", algorithm="low-oda") <= rows.mean("mean_degree", algorithm="shadow")
    assert rows.mean("shadow", algorithm="shadow") < rows.mean("shadow", algorithm="naive")


def test_subscriber_assignment():
    """Paper 4: bandwidth is far higher if the event space is ignored, far lower if latency is."""
    case = {"set": "1HH", "seed": 0, "subscribers": 1500, "brokers": 15}
    names = ("gr*", "gr-no-latency", "closest", "balance")
    rows = FigureRows(tuple(paper4_assignment._run(case, *names)))
    star, no_latency, closest, balance = (rows.mean("bandwidth", algorithm=name) for name in names)
    assert no_latency < star < min(closest, balance)
    assert rows.mean("feasible", algorithm="gr*") == 1


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_figures_are_complete(figure):
    """Cases are plain data, all different, smaller when quick; axes and curves are columns of the cases."""
    quick, full = (list(figure.cases(quick)) for quick in (True, False))
    for cases in (quick, full):
        texts = [json.dumps(case, sort_keys=True) for case in cases]
        assert len(set(texts)) == len(texts) > 0
        assert all(figure.x in {"round", "topics", "shadow_size", "size", *case} for case in cases)
        assert {*figure.curves} <= {"algorithm", "kind", *cases[0]}
    assert quick != full
    assert re.fullmatch(r"(fig|table)\d+", figure.name)
    (source,) = (other for other in FIGURES if other.key == figure.source)
    assert list(source.cases(True)) == quick, "a figure that shares runs has the same cases"


def test_latencies_are_measured_if_there_is_data(tmp_path, monkeypatch):
    """A case names its latency matrix, so that runs with and without data have different cases."""
    monkeypatch.delenv("BROADLOOM_DATA", raising=False)
    assert {case["latency"] for case in paper1_weighted_overlays.FIG8.cases(True)} == {GENERATED}
    monkeypatch.setenv("BROADLOOM_DATA", str(tmp_path))
    for file in MEASURED.values():
        np.savez(tmp_path / file, rtt_ms=np.array([[0, 10, 40], [30, 0, 20], [np.nan, 20, 0]]))
    assert {case["latency"] for case in paper1_weighted_overlays.FIG8.cases(True)} == set(MEASURED)
    assert {case["latency"] for case in paper1_weighted_overlays.FIG4.cases(True)} == {"RIPE Atlas"}
    found = latencies(3, 0, "WonderNetwork")
    upper = [found.of(0, 1), found.of(0, 2), found.of(1, 2)]
    assert sorted(upper / np.min(upper)) == pytest.approx([1, 2, 4])
    assert np.mean(upper) == pytest.approx(1)


@pytest.mark.parametrize(
    ("relation", "ours", "verdict"),
    [
        ("about", 11, "reproduced"),
        ("about", 14, "not reproduced"),
        ("at most", -5, "reproduced"),
        ("at most", 13, "not reproduced"),
        ("at least", 99, "reproduced"),
        ("at least", 7, "not reproduced"),
        ("about", float("nan"), "not measured"),
    ],
)
def test_verdicts(relation, ours, verdict):
    claim = Claim("I", "ten", 10, lambda _: ours, relation, why="chance")
    found = claim.verdict(FigureRows(()))
    assert found["verdict"] == verdict
    assert found["why"] == ("" if verdict == "reproduced" else "chance")


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_every_curve_is_drawn(figure):
    """A curve has a point for each x with a value, whatever the type of the values."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure as Canvas

    found = {panel.y: 2.0 for panel in figure.panels}
    first, last = (figure.cases(True)[at] for at in (0, -1))
    rows = [
        dict.fromkeys(("round", "topics", "size", "shadow_size"), 3)
        | {"kind": "join", "algorithm": name}
        | case
        | found
        for case in (first, last)
        for name in ("one", "other")
    ]
    nothing = dict.fromkeys(found) | {"algorithm": "not drawn"}
    rows = FigureRows((*rows, rows[0] | nothing))
    curves = curves_of(figure, rows)
    assert curves
    assert {"algorithm": "not drawn"} not in curves
    for panel in figure.panels:
        axes = Canvas().subplots()
        draw_panel(axes, figure, panel, rows)
        assert [len(line.get_xdata()) > 0 for line in axes.get_lines()] == [True] * len(curves)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_every_claim_has_a_reason_for_a_difference(figure):
    """Each claim has a reason and a section, and its text is unique in the figure."""
    assert all(claim.why and claim.where for claim in figure.claims)
    texts = [claim.text for claim in figure.claims]
    assert len(set(texts)) == len(texts)
    assert {claim.relation for claim in figure.claims} <= {"about", "at most", "at least"}


@pytest.mark.parametrize("content", [b"", b'[{"k": 1', b"[]", b"{}", b"[1]", b"\xff"])
def test_damaged_cases_have_no_rows(tmp_path, content):
    """A case whose file is damaged has no rows, like a case that was not run."""
    path = tmp_path / "case.json"
    assert read_case(path) == []
    path.write_bytes(content)
    assert read_case(path) == []
    write_case([{"k": 1}], path)
    assert read_case(path) == [{"k": 1}]
    assert [one.name for one in tmp_path.iterdir()] == ["case.json"]


def test_a_figure_is_written_and_shown(tmp_path):
    """A table, a drawing, claims, and a page without external resources."""
    pytest.importorskip("matplotlib")
    figure = paper2_low_degree.FIG5
    rows = rows_of(
        figure, *(paper2_low_degree._case(seed, 20, size, "unif") for seed in (0, 1) for size in (10, 20))
    )
    claims = write_figure(figure, rows, tmp_path, quick=True)
    page = write_page({figure: True}, claims, tmp_path).read_text()
    assert "Reduced size." in page
    assert "data:image/svg+xml" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert all(html.escape(claim["claim"]) in page for claim in claims)
    assert (tmp_path / "claims.parquet").exists()
    assert (tmp_path / "paper2-fig5.svg").read_text().count("cd-oda-1") >= 1


def test_unknown_figures_are_refused():
    with pytest.raises(bl.InputError, match="no paper 9; there are 1, 2"):
        figures_of(9)
    with pytest.raises(bl.InputError, match="paper 1 has no 'fig1' here; there are fig4"):
        figures_of(1, "fig1")
