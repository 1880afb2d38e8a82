//! The Metal host on machines that lack something, in software: it does without, and says so.
#![cfg(all(feature = "software-metal", not(target_vendor = "apple")))]
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

use std::fs;
use std::path::Path;

use lily_kernels::backend::{Backend, Feature};
use lily_kernels::check::{cases, check_case};
use lily_kernels::mapped::MappedFile;
use lily_kernels::metal::MetalBackend;
use lily_kernels::op::OpKind;
use software_metal::{Machine, set_machine};

fn row(device: &mut MetalBackend, name: &str) -> Feature {
    device.features().into_iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}"))
}

/// Runs a kernel on a device.
fn works(mut device: MetalBackend) {
    check_case(&cases(OpKind::RmsNorm)[0], &mut device).unwrap();
}

/// A machine, the row that tells, and a part of what it says.
#[test]
fn what_a_machine_lacks_is_done_without() {
    let all = Machine::default;
    for (machine, name, available, part) in [
        (all(), "Metal Shading Language", true, "4.0: a probe compiles"),
        (Machine { system: (15, 6), ..all() }, "Metal Shading Language", true, "3.2: a probe compiles; not 4.0: needs"),
        (
            Machine { language: (3 << 16) + 1, ..all() },
            "Metal Shading Language",
            true,
            "not 3.2: error: no such version",
        ),
        (Machine { system: (14, 5), ..all() }, "residency sets", false, "needs macOS 15.0, this is 14.5"),
        (Machine { system: (14, 5), ..all() }, "buffers kept resident", false, "no set"),
        (Machine { residency_sets: false, ..all() }, "buffers kept resident", false, "no set"),
        (all(), "buffers kept resident", true, "in one set"),
        (Machine { families: vec![1001, 1007], ..all() }, "GPU family Apple10", false, "M5 and later"),
        (all(), "GPU family Apple9", true, "M3 and later"),
        (all(), "simdgroup matrices", true, "a probe compiles"),
        (Machine { unknown: vec!["simdgroup_float8x8"], ..all() }, "simdgroup matrices", false, "does not know"),
        (Machine { unknown: vec!["bfloat"], ..all() }, "bfloat", false, "does not know bfloat"),
        (all(), "tensor operations on half", true, "a probe compiles"),
        (Machine { unknown: vec!["metal_tensor"], ..all() }, "tensor operations on half", false, "does not know"),
        (all(), "tensor operations on bfloat", true, "a probe compiles"),
        (all(), "matmuls by tensor operations", false, "no units for them: GPU family Apple10 has (M5 and later)"),
        (Machine::with_units(), "matmuls by tensor operations", true, "linear_tensor, for bulk weights in half"),
        (
            Machine { unknown: vec!["metal_tensor"], ..Machine::with_units() },
            "matmuls by tensor operations",
            false,
            "does not know metal_tensor",
        ),
        (all(), "matmuls by simdgroup matrices", true, "the tiles of linear, experts and attention"),
        (
            Machine { unknown: vec!["simdgroup_float8x8"], ..all() },
            "matmuls by simdgroup matrices",
            false,
            "so rows one by one: linear_rows",
        ),
        (Machine { system: (26, 0), ..all() }, "tensor operations on bfloat", false, "needs macOS 26.1, this is 26.0"),
        (all(), "two steps in flight", true, "a shared event orders them"),
    ] {
        set_machine(machine);
        let mut device = MetalBackend::new().unwrap();
        let row = row(&mut device, name);
        assert!(row.available == available && row.why.contains(part), "{row:?}");
        works(device);
    }
    for (machine, part) in [
        (Machine { families: vec![2002], ..all() }, "its kernels are for Apple's GPUs; this is software"),
        (Machine { system: (13, 0), ..all() }, "no version of the language from 3.1 on; not 4.0: needs macOS 26.0"),
    ] {
        set_machine(machine);
        let error = MetalBackend::new().err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_archive_is_written_read_and_never_needed() {
    set_machine(Machine::default());
    let folder = tempfile::tempdir().unwrap();
    let opened = |folder: &Path| {
        let mut device = MetalBackend::new().unwrap();
        device.cache_in(folder);
        let row = row(&mut device, "archive of kernels");
        works(device);
        row
    };
    let below = folder.path().join("a/b");
    assert!(opened(&below).why.starts_with("begun in "));
    let files: Vec<_> = fs::read_dir(&below).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let text = fs::read(file).unwrap();
    assert!(opened(&below).why.starts_with("read from "));
    assert_eq!(fs::read(file).unwrap(), text, "nothing was new");
    // A damaged file is written anew.
    fs::write(file, b"no archive").unwrap();
    assert!(opened(&below).why.starts_with("begun in "));
    assert_eq!(fs::read(file).unwrap(), text);
    // Nor does it matter that there can be no folder.
    opened(&file.join("c"));

    set_machine(Machine { binary_archives: false, ..Machine::default() });
    let row = opened(&below);
    assert!(!row.available && row.why.contains("no binary archives"), "{row:?}");
    set_machine(Machine::default());
    assert!(!row_without_folder().available);
}

fn row_without_folder() -> Feature {
    row(&mut MetalBackend::new().unwrap(), "archive of kernels")
}

#[test]
fn weights_stay_in_place_where_they_are_aligned_and_the_machine_takes_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let all = Machine::default;
    for (machine, mapped, first, in_place) in [
        (all(), true, 64, true),
        (all(), true, 72, false),
        (all(), false, 64, false),
        (Machine { no_copy: false, ..all() }, true, 64, false),
    ] {
        set_machine(machine);
        let mut device = MetalBackend::new().unwrap();
        let file = if mapped { MappedFile::open(&path).unwrap() } else { MappedFile::from_static("w", &[7; 100]) };
        device.open_weights(file, first).unwrap();
        let row = row(&mut device, "weights in place");
        assert_eq!(row.available, in_place, "{row:?}");
        assert!(row.why.starts_with(&format!("{} of 1 files", u8::from(in_place))), "{row:?}");
    }
    set_machine(Machine { longest: 9_999, ..all() });
    let error =
        MetalBackend::new().unwrap().open_weights(MappedFile::open(&path).unwrap(), 64).unwrap_err().to_string();
    assert!(error.ends_with("has 10000 bytes, and a buffer of this GPU holds 9999 at most"), "{error}");
}

#[test]
fn what_is_taken_is_no_longer_available() {
    set_machine(Machine { working_set: 1 << 34, ..Machine::default() });
    let mut device = MetalBackend::new().unwrap();
    device.allocate("a part of it", 1 << 24).unwrap();
    assert!(device.available_bytes().unwrap() <= (1 << 34) - (1 << 24));
}
