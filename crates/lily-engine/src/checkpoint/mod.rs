//! Files → tensors.
