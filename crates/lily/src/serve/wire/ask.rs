//! What a request of any API comes down to: one form behind all formats, so that the core knows none of them.

use lily_engine::request::{Prompt, Request, ResponseFormat, SamplingParams, ToolChoice};

use crate::flags::SamplingFlags;

/// A request, read; ranges are the engine's business.
#[derive(Debug)]
pub struct Ask {
    /// The model asked for.
    pub model: Option<String>,
    /// What to continue; each is answered `n` times.
    pub prompts: Vec<Prompt>,
    /// Answers to each prompt.
    pub n: usize,
    /// What replaces the model's sampling defaults.
    pub sampling: SamplingFlags,
    /// Log-probabilities of the answer's tokens and of this many of the likeliest.
    pub logprobs: Option<usize>,
    /// The same of the prompt's tokens.
    pub prompt_logprobs: Option<usize>,
    /// Most tokens of thinking.
    pub thinking_budget: Option<usize>,
    /// What the content must be.
    pub response_format: ResponseFormat,
    /// Whether the answer must call tools.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls.
    pub parallel_tool_calls: bool,
    /// Server-sent events instead of one object.
    pub stream: bool,
}

impl Ask {
    /// One prompt, one whole answer, nothing special.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            model: None,
            prompts: vec![prompt],
            n: 1,
            sampling: SamplingFlags::default(),
            logprobs: None,
            prompt_logprobs: None,
            thinking_budget: None,
            response_format: ResponseFormat::Text,
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            stream: false,
        }
    }

    /// The engine's requests, in the order of the choices: the answers to the first prompt, those to the second, ...
    /// Each answer to a prompt has a seed of its own, counted up from the one given.
    pub fn requests(&self, defaults: SamplingParams, random_seed: u64) -> Vec<Request> {
        let answers = self.prompts.iter().flat_map(|prompt| (0..self.n as u64).map(move |i| (prompt, i)));
        let request = |(prompt, i): (&Prompt, u64)| {
            let mut request = self.sampling.request(prompt.clone(), defaults, random_seed);
            request.sampling.seed = request.sampling.seed.wrapping_add(i);
            Request {
                logprobs: self.logprobs,
                prompt_logprobs: self.prompt_logprobs,
                thinking_budget: self.thinking_budget,
                response_format: self.response_format.clone(),
                tool_choice: self.tool_choice.clone(),
                parallel_tool_calls: self.parallel_tool_calls,
                ..request
            }
        };
        answers.map(request).collect()
    }
}
