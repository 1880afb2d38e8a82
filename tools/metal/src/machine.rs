//! Which machine the device in software stands for: what it lacks is what a host must do without.

use std::cell::RefCell;

/// A machine. The default has everything that this device knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Version of macOS.
    pub system: (u32, u32),
    /// Newest language that compiles, as Metal numbers them: `4 << 16` is 4.0.
    pub language: usize,
    /// Numbers of the GPU families.
    pub families: Vec<isize>,
    /// Words that no source may contain: a compiler that does not know them.
    pub unknown: Vec<&'static str>,
    /// Whether it makes residency sets.
    pub residency_sets: bool,
    /// Whether it makes binary archives.
    pub binary_archives: bool,
    /// Whether it takes the host's memory for a buffer.
    pub no_copy: bool,
    /// Bytes of the longest buffer.
    pub longest: usize,
    /// Bytes that programs should use at most.
    pub working_set: u64,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            system: (26, 4),
            language: 4 << 16,
            families: vec![1001, 1007, 1008, 1009, 5002],
            unknown: Vec::new(),
            residency_sets: true,
            binary_archives: true,
            no_copy: true,
            longest: usize::MAX,
            working_set: u64::MAX,
        }
    }
}

impl Machine {
    /// One whose GPU has units for tensor operations.
    pub fn with_units() -> Self {
        let mut machine = Self::default();
        machine.families.push(1010);
        machine
    }
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::default();
}

/// The machine of the devices that this thread makes from now on.
pub fn set_machine(machine: Machine) {
    MACHINE.replace(machine);
}

/// The machine of this thread.
pub fn machine() -> Machine {
    MACHINE.with_borrow(Clone::clone)
}
