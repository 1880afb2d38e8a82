//! CPU kernel: copies rows.

/// `out[i] = x[outputs[i]]`, rows of `cols`.
pub fn run(cols: usize, x: &[f32], outputs: &[u32], out: &mut [f32]) {
    for (&row, out) in outputs.iter().zip(out.chunks_exact_mut(cols)) {
        out.copy_from_slice(&x[row as usize * cols..][..cols]);
    }
}
