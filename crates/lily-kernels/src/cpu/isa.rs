//! Instruction sets: which ones this processor has, and how a kernel body is compiled once for each.
//! Every set gives the same bytes; they differ in speed alone. Nothing outside this file can make an `Isa`, so that
//! holding one proves that the processor has it.

/// An instruction set that this processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Level);

/// Which code to run. Seen through `Isa::level`: a `Level` alone proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Level {
    /// The target's baseline.
    Scalar,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 128-bit vectors.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// The baseline, which every processor has.
    pub const SCALAR: Self = Self(Level::Scalar);

    /// The best set of this processor.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::SCALAR)
    }

    /// Every set of this processor, from the baseline up.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::known().filter_map(|(isa, has)| has.then_some(isa))
    }

    /// Names of the sets that this build has code for but this processor lacks.
    pub fn missing() -> impl Iterator<Item = &'static str> {
        Self::known().filter_map(|(isa, has)| (!has).then_some(isa.name()))
    }

    /// Name for logs and reports.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
        }
    }

    /// For the dispatch macro.
    pub(crate) const fn level(self) -> Level {
        self.0
    }

    /// Private: an `Isa` from here may be one that the processor lacks.
    #[cfg(target_arch = "x86_64")]
    fn known() -> impl Iterator<Item = (Self, bool)> {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        [(Self::SCALAR, true), (Self(Level::Avx2), avx2), (Self(Level::Avx512), avx2 && avx512)].into_iter()
    }

    /// Private: an `Isa` from here may be one that the processor lacks.
    #[cfg(target_arch = "aarch64")]
    fn known() -> impl Iterator<Item = (Self, bool)> {
        let neon =
            std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("dotprod");
        [(Self::SCALAR, true), (Self(Level::Neon), neon)].into_iter()
    }

    /// Private, as above.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn known() -> impl Iterator<Item = (Self, bool)> {
        [(Self::SCALAR, true)].into_iter()
    }
}

/// `multiversion! { pub fn name(a: A, …) -> R = body; }` makes `name(isa, a, …)`, which runs `body::<V>(a, …)` compiled
/// for the instruction set, with V its `Lanes`. The body and all that it calls per element are `#[inline(always)]`:
/// that is how they come to be compiled for the set. `= body[2, true]` runs `body::<V, 2, true>`.
macro_rules! multiversion {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $([$($generic:tt),+])?;)+) => {$(
        $(#[$meta])*
        $vis fn $name(isa: $crate::cpu::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            use $crate::cpu::{isa::Level, lanes};

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<lanes::Avx2 $($(, $generic)+)?>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<lanes::Avx512 $($(, $generic)+)?>($($arg),*)
            }

            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon($($arg: $ty),*) $(-> $ret)? {
                $body::<lanes::Neon $($(, $generic)+)?>($($arg),*)
            }

            match isa.level() {
                Level::Scalar => $body::<lanes::Scalar $($(, $generic)+)?>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this level is only made where the processor has these features.
                Level::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Level::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: as above.
                Level::Neon => unsafe { neon($($arg),*) },
            }
        }
    )+};
}
pub(crate) use multiversion;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_last_available() {
        assert_eq!(Isa::available().next(), Some(Isa::SCALAR));
        assert_eq!(Isa::available().last(), Some(Isa::detect()));
    }
}
