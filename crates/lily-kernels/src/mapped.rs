//! Read-only mapping of weight files.
