"""Regions of the public clouds, and latencies computed from the distances between them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_instance, check_number, ordered_list, shown

EARTH_RADIUS_KM = 6371.0
# Light in fibre covers 200 km per millisecond, and cables are about 1.5 times as long as the great circle:
# rtt_ms = BASE_MS + km * MS_PER_KM, with MS_PER_KM = 2 * 1.5 / 200.
BASE_MS = 1.0
MS_PER_KM = 0.015
# The round-trip time inside a region.
INNER_MS = 0.5


class Region(NamedTuple):
    """A cloud region: its name, a city in or near it, and the coordinates of that city in degrees."""

    name: str
    city: str
    latitude: float
    longitude: float

    @property
    def place(self) -> str:
        """The city; an older name, kept for callers."""
        return self.city


REGIONS: tuple[Region, ...] = (
    Region("aws/us-east-1", "Ashburn", 39.04, -77.49),
    Region("aws/us-east-2", "Columbus", 39.96, -83.00),
    Region("aws/us-west-1", "San Jose", 37.34, -121.89),
    Region("aws/us-west-2", "Boardman", 45.84, -119.70),
    Region("aws/ca-central-1", "Montreal", 45.50, -73.57),
    Region("aws/ca-west-1", "Calgary", 51.05, -114.07),
    Region("aws/mx-central-1", "Queretaro", 20.59, -100.39),
    Region("aws/sa-east-1", "Sao Paulo", -23.55, -46.63),
    Region("aws/eu-west-1", "Dublin", 53.35, -6.26),
    Region("aws/eu-west-2", "London", 51.51, -0.13),
    Region("aws/eu-west-3", "Paris", 48.86, 2.35),
    Region("aws/eu-central-1", "Frankfurt", 50.11, 8.68),
    Region("aws/eu-central-2", "Zurich", 47.38, 8.54),
    Region("aws/eu-north-1", "Stockholm", 59.33, 18.07),
    Region("aws/eu-south-1", "Milan", 45.46, 9.19),
    Region("aws/eu-south-2", "Zaragoza", 41.65, -0.88),
    Region("aws/il-central-1", "Tel Aviv", 32.09, 34.78),
    Region("aws/me-central-1", "Dubai", 25.20, 55.27),
    Region("aws/me-south-1", "Manama", 26.23, 50.59),
    Region("aws/af-south-1", "Cape Town", -33.92, 18.42),
    Region("aws/ap-south-1", "Mumbai", 19.08, 72.88),
    Region("aws/ap-south-2", "Hyderabad", 17.39, 78.49),
    Region("aws/ap-southeast-1", "Singapore", 1.35, 103.82),
    Region("aws/ap-southeast-2", "Sydney", -33.87, 151.21),
    Region("aws/ap-southeast-3", "Jakarta", -6.21, 106.85),
    Region("aws/ap-southeast-4", "Melbourne", -37.81, 144.96),
    Region("aws/ap-southeast-5", "Kuala Lumpur", 3.14, 101.69),
    Region("aws/ap-southeast-7", "Bangkok", 13.76, 100.50),
    Region("aws/ap-east-1", "Hong Kong", 22.32, 114.17),
    Region("aws/ap-northeast-1", "Tokyo", 35.68, 139.69),
    Region("aws/ap-northeast-2", "Seoul", 37.57, 126.98),
    Region("aws/ap-northeast-3", "Osaka", 34.69, 135.50),
    Region("azure/centralus", "Des Moines", 41.59, -93.62),
    Region("azure/southcentralus", "San Antonio", 29.42, -98.49),
    Region("azure/northcentralus", "Chicago", 41.88, -87.63),
    Region("azure/westus3", "Phoenix", 33.45, -112.07),
    Region("azure/westus2", "Quincy", 47.23, -119.85),
    Region("azure/canadaeast", "Quebec", 46.81, -71.21),
    Region("azure/canadacentral", "Toronto", 43.65, -79.38),
    Region("azure/norwayeast", "Oslo", 59.91, 10.75),
    Region("azure/westeurope", "Amsterdam", 52.37, 4.90),
    Region("azure/polandcentral", "Warsaw", 52.23, 21.01),
    Region("azure/spaincentral", "Madrid", 40.42, -3.70),
    Region("azure/francesouth", "Marseille", 43.30, 5.37),
    Region("azure/ukwest", "Cardiff", 51.48, -3.18),
    Region("azure/southafricanorth", "Johannesburg", -26.20, 28.05),
    Region("azure/qatarcentral", "Doha", 25.29, 51.53),
    Region("azure/southindia", "Chennai", 13.08, 80.27),
    Region("azure/centralindia", "Pune", 18.52, 73.86),
    Region("azure/australiacentral", "Canberra", -35.28, 149.13),
    Region("azure/newzealandnorth", "Auckland", -36.85, 174.76),
    Region("google/us-west4", "Las Vegas", 36.17, -115.14),
    Region("google/us-west3", "Salt Lake City", 40.76, -111.89),
    Region("google/us-west2", "Los Angeles", 34.05, -118.24),
    Region("google/us-south1", "Dallas", 32.78, -96.80),
    Region("google/us-east1", "Moncks Corner", 33.20, -80.01),
    Region("google/southamerica-west1", "Santiago", -33.45, -70.67),
    Region("google/europe-west1", "St Ghislain", 50.45, 3.82),
    Region("google/europe-west10", "Berlin", 52.52, 13.40),
    Region("google/europe-west12", "Turin", 45.07, 7.69),
    Region("google/europe-north1", "Hamina", 60.57, 27.20),
    Region("google/me-central2", "Dammam", 26.42, 50.09),
    Region("google/asia-south2", "Delhi", 28.61, 77.21),
    Region("google/asia-east1", "Changhua", 24.08, 120.54),
)


def region_latency(regions: tuple[Region, ...] = REGIONS) -> NDArray[np.float64]:
    """Round-trip times between regions in ms: `BASE_MS + MS_PER_KM` times the great-circle distance.

    Examples:
        >>> names = [region.name for region in REGIONS]
        >>> london, tokyo = names.index("aws/eu-west-2"), names.index("aws/ap-northeast-1")
        >>> round(float(region_latency()[london, tokyo]))
        144
    """
    latitude, longitude = _angles(regions)
    north = np.sin((latitude[:, None] - latitude) / 2) ** 2
    east = np.sin((longitude[:, None] - longitude) / 2) ** 2
    half = north + np.cos(latitude[:, None]) * np.cos(latitude) * east
    distance = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(half, 0, 1)))
    latency = BASE_MS + MS_PER_KM * (distance + distance.T) / 2
    np.fill_diagonal(latency, INNER_MS)
    return latency


def region_points(regions: tuple[Region, ...] = REGIONS) -> NDArray[np.float64]:
    """A point in three dimensions per region; the distance of two is their round-trip time in ms.

    Distances are straight lines through the earth: shorter than the great circle, by about a third at most.

    Examples:
        >>> region_points()[:1].round()
        array([[ 16., -72.,  60.]])
    """
    latitude, longitude = _angles(regions)
    flat = np.cos(latitude)
    points = np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)
    return EARTH_RADIUS_KM * MS_PER_KM * points


def _angles(regions: object) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The latitude and the longitude of each region, in radians."""
    listed = ordered_list(regions, "regions")
    for region in listed:
        check_instance(region, Region, "a region", "give broadloom.workload.Region")
        check_number(region.latitude, f"the latitude of {shown(region.name)}", -90, 90)
        check_number(region.longitude, f"the longitude of {shown(region.name)}", -180, 180)
    angles = np.radians([(region.latitude, region.longitude) for region in listed]).reshape(-1, 2)
    return angles[:, 0], angles[:, 1]
