"""The rooms where runs are kept: one module per store, all behind the seam in `holdfast.store`."""
