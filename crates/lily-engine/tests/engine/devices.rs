//! The devices of this build other than the first: whole models against the goldens. Where the device is one in software,
//! it is slow, so rows are few.

use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{DEVICES, ModelSource, Precision, SWITCHES, Switches};
use lily_engine::runtime::Runtime;
use lily_kernels::devices;

use crate::fidelity::margins;
use crate::harness::{self, Golden, relative_rms, top1};
use crate::support::{self, root};

/// Sums are in another order than the golden's, and each rounds once.
const TOLERANCE: f64 = 1e-4;

fn others() -> &'static [&'static str] {
    if DEVICES.len() == 1 {
        println!("SKIP other devices: this build has none");
    }
    &DEVICES[1..]
}

fn runtime(device: &str, source: &ModelSource, precision: Precision) -> Runtime {
    runtime_with(device, source, precision, Switches::default())
}

fn runtime_with(device: &str, source: &ModelSource, precision: Precision, switches: Switches) -> Runtime {
    let backend = devices::open(device, None).unwrap();
    let precision = if precision == Precision::Fast { backend.kind().fast() } else { precision };
    let mut checkpoint = Checkpoint::open(source).unwrap();
    Runtime::load(&mut checkpoint, backend, 2048, precision, switches).unwrap()
}

#[test]
fn every_architecture_equals_its_golden_on_other_devices() {
    for device in others() {
        for folder in harness::architectures() {
            let golden = Golden::open(&folder.join("golden.safetensors"));
            let mut runtime = runtime(device, &ModelSource::Folder(folder.clone()), Precision::Exact);
            let (ids, want) = (golden.ids("tokens"), golden.floats("logits"));
            let error = relative_rms(&harness::logits(&mut runtime, &ids, 7), &want);
            let in_steps = relative_rms(&harness::prompt_and_steps(&mut runtime, &ids, ids.len() - 4), &want);
            println!("{device}, {}: relative rms {error:.1e}, in steps {in_steps:.1e}", folder.display());
            assert!(error.max(in_steps) <= TOLERANCE, "{device}, {}: {error:.2e}", folder.display());
        }
    }
}

#[test]
fn the_demo_model_keeps_every_decided_choice_on_other_devices() {
    let golden = Golden::open(&root().join("golden/demo/golden_mlx_f32.safetensors"));
    for device in others() {
        for (precision, tokens) in [(Precision::Exact, 48), (Precision::Fast, 128)] {
            let mut runtime = runtime(device, &ModelSource::Embedded(support::DEMO), precision);
            let vocab = runtime.stepper.model().config.vocab_size;
            let want = &golden.floats("logits")[..tokens * vocab];
            let got = harness::logits(&mut runtime, &golden.ids("tokens")[..tokens], 32);
            let error = relative_rms(&got, want);
            let rows = top1(&got, vocab).into_iter().zip(top1(want, vocab)).zip(margins(want, vocab));
            let decided: Vec<bool> = rows.filter(|(_, margin)| *margin >= 0.3).map(|((g, w), _)| g == w).collect();
            println!("{device}, {precision:?}: relative rms {error:.1e}, {} decided choices", decided.len());
            assert!(decided.len() > tokens / 2 && decided.iter().all(|equal| *equal), "{device}, {precision:?}");
            assert!(precision == Precision::Fast || error <= TOLERANCE, "{device}: {error:.2e}");
        }
    }
}

#[test]
fn greedy_text_is_the_goldens_on_other_devices() {
    let json = std::fs::read_to_string(root().join("golden/demo/greedy_mlx_f32.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    for device in others() {
        let mut runtime = runtime(device, &ModelSource::Embedded(support::DEMO), Precision::Fast);
        for row in rows.iter().filter(|row| row["greedy"].as_array().unwrap().len() <= 16) {
            let want = ids(&row["greedy"]);
            let got = harness::greedy(&mut runtime, &ids(&row["ids"]), want.len());
            assert_eq!(got, want, "{device}: {}", row["prompt"]);
        }
    }
}

/// A switch removes an optimisation, never changes the mathematics: a prompt and some tokens behind it.
#[test]
fn logits_agree_with_any_switch_off_on_other_devices() {
    let golden = Golden::open(&root().join("golden/demo/golden_mlx_f32.safetensors"));
    let ids = &golden.ids("tokens")[..37];
    for device in others() {
        let kind = devices::open(device, None).unwrap().kind();
        let logits = |switches| {
            let source = ModelSource::Embedded(support::DEMO);
            let mut runtime = runtime_with(device, &source, Precision::Exact, switches);
            harness::prompt_and_steps(&mut runtime, ids, 33)
        };
        let want = logits(Switches::default());
        for switch in SWITCHES.iter().filter(|s| s.is_of(kind)) {
            let error = relative_rms(&logits(Switches::default().without(switch.name).unwrap()), &want);
            println!("{device}, without {}: relative rms {error:.1e}", switch.name);
            // What is expanded first is rounded to bf16.
            let limit = if switch.name == "fused-dequant" { 2e-2 } else { TOLERANCE };
            assert!(error <= limit, "{device}, without {}: {error:.2e}", switch.name);
        }
    }
}

/// A weight that is no number anywhere ends in logits that are none, and the device stays whole.
#[test]
fn what_is_not_a_number_is_told_on_other_devices() {
    for device in others() {
        let folder = harness::architectures().into_iter().find(|path| path.ends_with("mlx-q4")).unwrap();
        let mut runtime = runtime(device, &ModelSource::Folder(folder.clone()), Precision::Exact);
        let vocab = runtime.stepper.model().config.vocab_size;
        let broken: Vec<u32> = vec![1, 2, 3];
        let constants = vec![f32::NAN; runtime.stepper.model().weights.constants.len()];
        runtime.stepper.backend.upload_constants(&constants).unwrap();
        let logits = harness::logits(&mut runtime, &broken, 3);
        assert!(logits.len() == 3 * vocab && logits.iter().all(|logit| logit.is_nan()), "{device}");
    }
}
