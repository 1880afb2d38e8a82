//! CPU kernel: a counting sort.

/// `experts` of the step's pairs → `offsets` `[E + 1]` and `order`.
pub fn run(experts: &[u32], offsets: &mut [u32], order: &mut [u32]) {
    offsets.fill(0);
    for &e in experts {
        offsets[e as usize + 1] += 1;
    }
    for e in 1..offsets.len() {
        offsets[e] += offsets[e - 1];
    }
    // Scattering moves each start to its end, which is the next one's start: shifting puts them right.
    for (pair, &e) in experts.iter().enumerate() {
        let at = &mut offsets[e as usize];
        order[*at as usize] = pair as u32;
        *at += 1;
    }
    offsets.copy_within(..offsets.len() - 1, 1);
    offsets[0] = 0;
}
