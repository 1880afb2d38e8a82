//! A block of columns of a row-major matrix that one task may write: what a matmul split over outputs needs, and what
//! slices cannot say.

use std::marker::PhantomData;
use std::ops::Range;

/// Columns `[start, start + width)` of every row. Tasks may use several at the same time, as long as no element is in a
/// row that two of them take: their columns are disjoint, or the rows that they ask for are.
pub struct ColumnsMut<'a> {
    first: *mut f32,
    rows: usize,
    width: usize,
    stride: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

impl<'a> ColumnsMut<'a> {
    /// All columns of a matrix of `stride` columns.
    pub fn new(matrix: &'a mut [f32], stride: usize) -> Self {
        assert!(stride > 0 && matrix.len().is_multiple_of(stride), "a matrix is whole rows");
        let rows = matrix.len() / stride;
        Self { first: matrix.as_mut_ptr(), rows, width: stride, stride, matrix: PhantomData }
    }

    /// Columns.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// The part of a row that lies in these columns.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row is inside the matrix this was made from, `width` columns of it are ours alone (`new` takes
        // the whole matrix, and so promised the caller of `split`), and `&mut self` keeps two rows from being held.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.width) }
    }

    /// A narrower view for one task.
    ///
    /// # Safety
    /// While one task holds a `row`, no other may hold the same row of an overlapping range of columns.
    pub unsafe fn split(&self, columns: Range<usize>) -> ColumnsMut<'a> {
        assert!(columns.start <= columns.end && columns.end <= self.width);
        // SAFETY: `start ≤ width`, so the pointer stays inside the row (or one past its end for an empty range).
        let first = unsafe { self.first.add(columns.start) };
        ColumnsMut { first, rows: self.rows, width: columns.len(), stride: self.stride, matrix: PhantomData }
    }
}

// SAFETY: a `ColumnsMut` is a set of exclusive `&mut [f32]`; f32 slices may move and be shared between threads.
unsafe impl Send for ColumnsMut<'_> {}
// SAFETY: `&ColumnsMut` offers only sizes and the unsafe `split`, whose contract forbids overlap.
unsafe impl Sync for ColumnsMut<'_> {}
