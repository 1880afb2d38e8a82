//! Device memory of the CPU: anonymous pages, zeroed, committed only when touched.

use memmap2::{MmapMut, MmapRaw};

use crate::backend::DeviceError;

/// A page-aligned buffer. Raw, because a step takes disjoint operands of one buffer as slices of their own: a borrow
/// of the whole would end them.
#[derive(Default)]
pub struct Buffer {
    /// `None` for an empty buffer (a mapping of no bytes does not exist).
    pages: Option<MmapRaw>,
}

impl Buffer {
    /// `bytes` zeroed bytes.
    ///
    /// # Errors
    /// The system has no address space or memory for it.
    pub fn new(what: &'static str, bytes: usize) -> Result<Self, DeviceError> {
        if bytes == 0 {
            return Ok(Self::default());
        }
        let pages = MmapMut::map_anon(bytes).map_err(|_| DeviceError::OutOfMemory { what, bytes })?;
        Ok(Self { pages: Some(pages.into()) })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pages.as_ref().map_or(0, MmapRaw::len)
    }

    /// Address of the first byte, on a page's bound and never null, as slices want it even of nothing.
    pub fn address(&self) -> *mut u8 {
        const PAGE: usize = 4096;
        self.pages.as_ref().map_or(std::ptr::without_provenance_mut(PAGE), MmapRaw::as_mut_ptr)
    }

    /// Contents.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pages live as long as `self` and are initialised; whoever writes them through `address` has the
        // device to itself meanwhile (`Step`).
        unsafe { std::slice::from_raw_parts(self.address(), self.len()) }
    }

    /// Contents.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_starts_as_zeros_and_may_be_empty() {
        let mut buffer = Buffer::new("test", 100).unwrap();
        assert_eq!((buffer.len(), buffer.bytes()), (100, &[0; 100][..]));
        buffer.bytes_mut()[99] = 7;
        assert_eq!(buffer.bytes()[99], 7);

        let mut empty = Buffer::new("test", 0).unwrap();
        assert_eq!((empty.len(), empty.bytes_mut().len()), (0, 0));
        assert!(empty.bytes().is_empty() && !empty.address().is_null());
    }
}
