"""`navi bench curves`: every group of cost curves measures its sizes, and exponents are those of power laws."""

import math
from xml.etree import ElementTree

import pytest

from navi_pipeline.bench import curves


def test_exponent_is_that_of_a_power_law_and_of_its_end():
    law = curves.Curve("x: y", "x", "y", tuple((n, 3.0 * n**1.5) for n in (1.0, 10.0, 100.0, 1000.0)))
    assert math.isclose(law.exponent(), 1.5)
    fixed = curves.Curve("x: y", "x", "y", tuple((n, 1000.0 + n) for n in (1.0, 10.0, 1e3, 1e5, 1e7)))
    assert fixed.exponent() < fixed.exponent(end=True) < 1.0


def test_limit_of_the_machine_needs_growth():
    grows, flat = (
        curves.Curve("triangles", "triangles", curves._RESIDENT, ((1.0, 1.0), (3.0, end))) for end in (5.0, 1.0)
    )
    grown, still = curves.machine_limits([grows, flat])
    assert grown["bytes"] == 2_097_152 and grown["most"] == grown["memory"] / 2_097_152
    assert still["bytes"] is None and still["most"] is None


@pytest.mark.slow
def test_groups_measure_their_sizes_and_draw_a_chart_each(tmp_path):
    measured = [
        *curves.over_drones((1, 2)),
        *curves.over_scenes((1, 2)),
        *curves.over_resolution(((16, 8), (32, 8))),
        *curves.over_triangles(lambda _: None, (2_000, 8_000)),
        *curves.over_sequences((4, 8)),
        *curves.over_rows(lambda _: None, (1_000, 2_000)),
    ]
    assert {curve.name.split(":")[0] for curve in measured} == set(curves.CURVES)
    for curve in measured:
        sizes, costs = zip(*curve.points, strict=True)
        assert len(sizes) == 2
        assert sizes[0] < sizes[1]
        assert min(costs) > 0.0
    files = curves.write_charts(measured, tmp_path)
    assert len({file.name for file in files}) == len(measured)
    assert all(ElementTree.parse(file).getroot().tag.endswith("svg") for file in files)
    limits = curves.machine_limits(measured)
    assert {row["curve"] for row in limits} >= {"drones: state"}
    with pytest.raises(KeyError):
        list(curves.measure_curves(["nothing"], lambda _: None))
