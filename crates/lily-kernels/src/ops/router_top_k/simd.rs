//! CPU kernel.

/// `logits` `[T, num_experts]` → `experts` and `weights` `[T, top_k]`.
pub fn run(num_experts: usize, top_k: usize, logits: &[f32], experts: &mut [u32], weights: &mut [f32]) {
    let outs = experts.chunks_exact_mut(top_k).zip(weights.chunks_exact_mut(top_k));
    for (logits, (experts, weights)) in logits.chunks_exact(num_experts).zip(outs) {
        select(logits, experts, weights);
        softmax(weights);
        if logits.iter().any(|logit| logit.is_nan()) {
            weights.fill(f32::NAN);
        }
    }
}

/// The largest logits and their experts, largest first. Insertion keeps equal logits in expert order; NaN counts as −∞.
fn select(logits: &[f32], experts: &mut [u32], values: &mut [f32]) {
    let mut len = 0;
    for (expert, &logit) in logits.iter().enumerate() {
        let logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        if len == values.len() && logit <= values[len - 1] {
            continue;
        }
        let mut at = if len < values.len() { len } else { len - 1 };
        len = len.max(at + 1);
        while at > 0 && values[at - 1] < logit {
            values[at] = values[at - 1];
            experts[at] = experts[at - 1];
            at -= 1;
        }
        values[at] = logit;
        experts[at] = expert as u32;
    }
}

fn softmax(values: &mut [f32]) {
    let max = values[0];
    let mut sum = 0.0;
    for v in values.iter_mut() {
        *v = if max > f32::NEG_INFINITY { (*v - max).exp() } else { 1.0 };
        sum += *v;
    }
    values.iter_mut().for_each(|v| *v /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_a_nan_names_experts_that_exist_and_its_weights_are_no_numbers() {
        let nan = f32::NAN;
        let rows = [[nan, 1.0, 3.0, 2.0], [nan; 4], [0.0, 1.0, 3.0, 3.0]].concat();
        let (mut experts, mut weights) = ([9; 6], [9.0; 6]);
        run(4, 2, &rows, &mut experts, &mut weights);
        assert_eq!((&experts[..2], &experts[4..]), (&[2, 3][..], &[2, 3][..]));
        assert!(experts.iter().all(|expert| *expert < 4) && weights[..4].iter().all(|weight| weight.is_nan()));
        assert_eq!(weights[4..], [0.5, 0.5]);
    }
}
