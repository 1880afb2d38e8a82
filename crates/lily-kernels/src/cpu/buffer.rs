//! Device memory of the CPU: anonymous pages, zeroed, committed only when touched.

use memmap2::MmapMut;

use crate::backend::DeviceError;

/// A page-aligned buffer.
#[derive(Default)]
pub struct Buffer {
    /// `None` for an empty buffer (a mapping of no bytes does not exist).
    pages: Option<MmapMut>,
    /// First byte, taken from the mapping while it was held exclusively.
    address: Address,
}

/// Where the pages start.
struct Address(*mut u8);

impl Default for Address {
    fn default() -> Self {
        Self(std::ptr::null_mut())
    }
}

// SAFETY: a number until `Step` uses it, under its own rules.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Buffer {
    /// `bytes` zeroed bytes.
    ///
    /// # Errors
    /// The system has no address space or memory for it.
    pub fn new(what: &'static str, bytes: usize) -> Result<Self, DeviceError> {
        if bytes == 0 {
            return Ok(Self::default());
        }
        let mut pages = MmapMut::map_anon(bytes).map_err(|_| DeviceError::OutOfMemory { what, bytes })?;
        let address = Address(pages.as_mut_ptr());
        Ok(Self { pages: Some(pages), address })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pages.as_ref().map_or(0, |p| p.len())
    }

    /// Contents.
    pub fn bytes(&self) -> &[u8] {
        self.pages.as_deref().unwrap_or(&[])
    }

    /// Contents.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.as_deref_mut().unwrap_or(&mut [])
    }

    /// Address of the first byte; for `Step`, which hands out disjoint operands.
    pub const fn address(&self) -> *mut u8 {
        self.address.0
    }
}
