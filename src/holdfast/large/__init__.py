"""Large values: kept once by content beside the records, or packed as differences from earlier ones."""
