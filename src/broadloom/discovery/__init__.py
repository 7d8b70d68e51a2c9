"""Discovery of a running fleet: checks of its brokers, and its subscriptions, publishers and latencies."""

from broadloom.discovery.broker_findings import BrokerFindings
from broadloom.discovery.doctor_report import DoctorReport, Finding
from broadloom.discovery.fleet_discovery import Discovery, discover
from broadloom.discovery.fleet_doctor import doctor

__all__ = ["BrokerFindings", "Discovery", "DoctorReport", "Finding", "discover", "doctor"]
