//! Measures slipring beside the floors of the machine: slices, histograms, tables.
