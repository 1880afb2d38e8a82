//! How kernels run in this process: fast, checked, or on an NVIDIA card. Apple's API has no place for it, so it is set from outside.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Unchecked, threads in their order.
    Fast,
    /// Every access is looked at; threads run in an order of this seed.
    Checked {
        /// 0: their own order.
        seed: u32,
    },
    /// On the first NVIDIA card of the machine, unchecked.
    Nvidia,
}

impl Mode {
    /// Whether accesses are looked at.
    pub const fn is_checked(self) -> bool {
        matches!(self, Self::Checked { .. })
    }
}

/// Numbers of the modes that have no seed; every other one is a seed.
const FAST: u64 = u64::MAX;
const NVIDIA: u64 = u64::MAX - 1;

static MODE: AtomicU64 = AtomicU64::new(FAST);

/// Sets the mode of libraries built and dispatches run from now on.
pub fn set_mode(mode: Mode) {
    let number = match mode {
        Mode::Fast => FAST,
        Mode::Nvidia => NVIDIA,
        Mode::Checked { seed } => u64::from(seed),
    };
    MODE.store(number, Ordering::SeqCst);
}

/// The mode.
pub fn mode() -> Mode {
    match MODE.load(Ordering::SeqCst) {
        NVIDIA => Mode::Nvidia,
        number => u32::try_from(number).map_or(Mode::Fast, |seed| Mode::Checked { seed }),
    }
}

/// 0 is none.
static LEFT_OUT: AtomicU32 = AtomicU32::new(0);

/// The barriers of this line do nothing from now on: a check that does not miss them checks nothing.
pub fn leave_out_barriers(line: Option<u32>) {
    LEFT_OUT.store(line.unwrap_or(0), Ordering::SeqCst);
}

/// The line, if there is one.
pub fn left_out() -> Option<u32> {
    Some(LEFT_OUT.load(Ordering::SeqCst)).filter(|line| *line > 0)
}
