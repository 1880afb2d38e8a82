//! Contents of test tensors: a small generator, so that a case is the same everywhere and for ever.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for each seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    pub const fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// In [−1, 1).
    pub const fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// About normal, variance 1: the sum of three uniform numbers, each of variance ⅓.
    pub fn normal(&mut self) -> f32 {
        self.signed() + self.signed() + self.signed()
    }

    /// `count` normal numbers times `scale`.
    pub fn normals(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.normal() * scale).collect()
    }

    /// The first `count` of a random order of `0..total`.
    pub fn distinct(&mut self, count: usize, total: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..total as u32).collect();
        for i in 0..count {
            let other = i + self.below(total - i);
            ids.swap(i, other);
        }
        ids.truncate(count);
        ids
    }
}
