"""The test kit: what the writer of a store, or of an agent, needs to show that promises are kept."""

from holdfast.testing.conformance import StoreConformance

__all__ = ["StoreConformance"]
