//! loom models.
