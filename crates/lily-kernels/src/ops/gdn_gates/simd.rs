//! CPU kernel. A few scalars per token, so plain and single-threaded.

/// `ab` = rows of a and b, `constants` = A_log and dt_bias, `out` = decay and beta; all of `heads` columns.
pub fn run(heads: usize, ab: (&[f32], &[f32]), constants: (&[f32], &[f32]), out: (&mut [f32], &mut [f32])) {
    let rows = ab.0.chunks_exact(heads).zip(ab.1.chunks_exact(heads));
    let outs = out.0.chunks_exact_mut(heads).zip(out.1.chunks_exact_mut(heads));
    for ((a, b), (decay, beta)) in rows.zip(outs) {
        for h in 0..heads {
            decay[h] = (-constants.0[h].exp() * softplus(a[h] + constants.1[h])).exp();
            beta[h] = 1.0 / (1.0 + (-b[h]).exp());
        }
    }
}

/// log(1 + eˣ) without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
