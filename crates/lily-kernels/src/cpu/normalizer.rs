//! ln Σ eˣ of a row of logits, for the host: what turns them into log-probabilities.

use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::lanes::{LANES, Lanes};

/// Logits whose weights are summed in f32; the sums of blocks are added in f64.
const BLOCK: usize = 4096;

/// ln Σ eˣ over what is not NaN; −∞ if that is nothing, or −∞ alone. The same bytes on every instruction set.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    of(Isa::detect(), logits)
}

fn of(isa: Isa, logits: &[f32]) -> f64 {
    let max = max(isa, logits);
    if max == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let sum: f64 = logits.chunks(BLOCK).map(|block| f64::from(weights(isa, block, max))).sum();
    f64::from(max) + sum.ln()
}

/// The rest of a row that is no whole run, filled up with what weighs nothing.
#[inline(always)]
fn filled<V: Lanes>(rest: &[f32]) -> V {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    V::load(&lanes)
}

#[inline(always)]
fn max_body<V: Lanes>(logits: &[f32]) -> f32 {
    let (runs, rest) = logits.as_chunks();
    // A NaN comes first in each `max`, so that the other is taken.
    let mut max = filled::<V>(rest).max(V::splat(f32::NEG_INFINITY));
    for run in runs {
        max = V::load(run).max(max);
    }
    max.max_lane()
}

/// e^(x − max), 0 for NaN, which comes first as above.
#[inline(always)]
fn weight<V: Lanes>(x: V, max: f32) -> V {
    x.sub(V::splat(max)).exp().max(V::splat(0.0))
}

#[inline(always)]
fn weights_body<V: Lanes>(logits: &[f32], max: f32) -> f32 {
    let (runs, rest) = logits.as_chunks();
    let mut sum = V::splat(0.0);
    for run in runs {
        sum = sum.add(weight(V::load(run), max));
    }
    sum.add(weight::<V>(filled(rest), max)).sum()
}

multiversion! {
    /// The largest; −∞ if there is none.
    fn max(logits: &[f32]) -> f32 = max_body;
    /// Σ e^(x − max).
    fn weights(logits: &[f32], max: f32) -> f32 = weights_body;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::lanes::tests::{numbers, seconds};

    fn exact(logits: &[f32]) -> f64 {
        let wide = || logits.iter().filter(|x| !x.is_nan()).map(|x| f64::from(*x));
        let max = wide().fold(f64::NEG_INFINITY, f64::max);
        max + wide().map(|x| (x - max).exp()).sum::<f64>().ln()
    }

    #[test]
    fn it_is_the_definition_and_the_same_on_every_set() {
        for len in [1, 15, 16, 17, 1000, 4096, 4097, 100_003] {
            for scale in [0.0, 1.0, 20.0, 300.0] {
                let mut logits: Vec<f32> = numbers(len, 5).iter().map(|x| x * scale - 7.0).collect();
                if len > 16 {
                    (logits[3], logits[len - 1], logits[len - 2]) = (f32::NAN, f32::NAN, f32::NEG_INFINITY);
                }
                let want = of(Isa::SCALAR, &logits);
                assert!((want - exact(&logits)).abs() < 1e-6 * want.abs().max(1.0), "{len}, {scale}: {want}");
                for isa in Isa::available() {
                    assert_eq!(of(isa, &logits).to_bits(), want.to_bits(), "{len}, {scale}, {}", isa.name());
                }
            }
        }
    }

    #[test]
    fn of_nothing_it_is_the_logarithm_of_nothing() {
        for logits in [&[][..], &[f32::NAN; 20], &[f32::NEG_INFINITY; 20]] {
            assert_eq!(log_sum_exp(logits), f64::NEG_INFINITY);
        }
    }

    #[test]
    #[ignore = "a measurement"]
    fn normalizer_rates() {
        let logits: Vec<f32> = numbers(248_320, 7).iter().map(|x| x * 10.0).collect();
        for isa in Isa::available() {
            let time = seconds(|| {
                std::hint::black_box(of(isa, &logits));
            });
            println!("{}, normalizer of {} logits: {:.0} µs", isa.name(), logits.len(), time * 1e6);
        }
    }
}
