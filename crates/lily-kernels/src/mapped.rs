//! Read-only mapping of weight files.

/// Stub.
pub struct MappedFile;
