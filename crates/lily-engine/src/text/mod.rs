//! Flow 2: text ↔ tokens.
