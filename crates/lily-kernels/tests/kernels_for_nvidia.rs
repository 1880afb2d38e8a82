//! Every library of Metal kernels is one of CUDA kernels too, where there is nvcc. That they compute the same is shown by
//! `lab sweep --device nvidia`, where there is a card.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
#![cfg(all(feature = "software-metal", not(target_vendor = "apple")))]

#[test]
fn every_library_compiles_for_an_nvidia_card() {
    if !software_metal::nvidia::is_possible() {
        println!("SKIP kernels for NVIDIA cards: there is no nvcc");
        return;
    }
    for (name, text) in lily_kernels::metal::libraries() {
        if text.contains("metal_tensor") {
            println!("SKIP {name} for NVIDIA cards: its tensor operations are Apple's");
            continue;
        }
        if let Err(e) = software_metal::nvidia::compile(software_metal::metal::SOURCE, &text) {
            panic!("{name}: {e}");
        }
    }
}
