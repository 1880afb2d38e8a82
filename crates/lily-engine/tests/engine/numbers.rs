//! Models whose numbers are none: an error, never an answer.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use lily_engine::engine::{Engine, EngineError, EngineOptions, ModelSource, Precision};
use lily_engine::request::{CancelToken, Completion, Prompt, Request, SamplingParams};
use safetensors::SafeTensors;

use crate::support::DEMO;

const WEIGHTS: &str = "model.safetensors";

fn weights() -> Vec<u8> {
    DEMO.files.iter().find(|(name, _)| *name == WEIGHTS).unwrap().1.to_vec()
}

/// Where the bytes of one tensor of floats of each kind lie.
fn kinds() -> BTreeMap<String, (Range<usize>, safetensors::Dtype)> {
    let weights = weights();
    let start = weights.as_ptr() as usize;
    let mut kinds = BTreeMap::new();
    for (name, tensor) in SafeTensors::deserialize(&weights).unwrap().iter() {
        if tensor.dtype() != safetensors::Dtype::U32 {
            let kind = name.split('.').filter(|part| part.parse::<usize>().is_err()).collect::<Vec<_>>().join(".");
            let at = tensor.data().as_ptr() as usize - start;
            kinds.entry(kind).or_insert((at..at + tensor.data().len(), tensor.dtype()));
        }
    }
    kinds
}

/// The demo model in a folder, with these bytes as its weights.
fn folder(weights: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in DEMO.files {
        std::fs::write(folder.path().join(name), if *name == WEIGHTS { weights } else { bytes }).unwrap();
    }
    folder
}

fn run(engine: &mut Engine, request: &Request) -> Result<Completion, EngineError> {
    engine.generate(request, &CancelToken::default(), &mut |_| ControlFlow::Continue(()))
}

fn request(sampling: SamplingParams) -> Request {
    Request { max_tokens: Some(8), ignore_eos: true, ..Request::new(Prompt::Tokens(vec![300, 301, 302]), sampling) }
}

/// What the engine says at the first token that it cannot choose.
fn refusal(engine: &mut Engine, request: &Request) -> String {
    match run(engine, request) {
        Ok(done) => format!("answered {:?}", done.tokens),
        Err(error) => error.to_string(),
    }
}

const SENTENCE: &str =
    "the model's logits are not numbers at position 3: its weights are damaged, or its values overflow";

/// Greedy reads the row as it is, the others a copy of it.
fn samplings() -> [SamplingParams; 3] {
    let hot = SamplingParams { temperature: 1.0, top_p: 0.9, ..SamplingParams::GREEDY };
    [SamplingParams::GREEDY, hot, SamplingParams { repetition_penalty: 1.1, ..hot }]
}

#[test]
fn a_weight_that_is_no_number_ends_the_request() {
    for (kind, (range, dtype)) in kinds() {
        let nan: &[u8] = if dtype == safetensors::Dtype::F32 { &[0, 0, 0xc0, 0x7f] } else { &[0xc0, 0x7f] };
        let mut weights = weights();
        for element in weights[range].chunks_mut(nan.len()) {
            element.copy_from_slice(nan);
        }
        let folder = folder(&weights);
        for precision in [Precision::Fast, Precision::Exact] {
            let source = ModelSource::Folder(folder.path().to_owned());
            let mut engine = Engine::open(&EngineOptions { precision, ..EngineOptions::new(source) }).unwrap();
            for sampling in samplings() {
                assert_eq!(refusal(&mut engine, &request(sampling)), SENTENCE, "{kind}, {precision:?}, {sampling:?}");
            }
        }
    }
}

/// It would be chosen for ever.
#[test]
fn a_single_infinite_logit_ends_the_request() {
    let mut weights = weights();
    let (range, _) = kinds()["language_model.lm_head.biases"].clone();
    let row = range.len() / 4096;
    // The sign of what they are multiplied with is not known here. −∞ says that a token is never chosen, which is no harm.
    for (id, infinity) in [(77, [0x80, 0x7f]), (78, [0x80, 0xff])] {
        weights[range.start + id * row..][..2].copy_from_slice(&infinity);
    }
    let folder = folder(&weights);
    let mut engine = Engine::open(&EngineOptions::new(ModelSource::Folder(folder.path().to_owned()))).unwrap();
    for sampling in samplings() {
        assert_eq!(refusal(&mut engine, &request(sampling)), SENTENCE);
    }
}
