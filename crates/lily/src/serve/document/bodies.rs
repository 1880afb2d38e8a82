//! The bodies of requests and errors, as the document describes them. Nothing is read through these types: the parsers
//! of `wire` read field by field, so that they can name what is wrong, and a test holds the two together.
#![allow(dead_code)] // they are only described

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A request to `/v1/chat/completions`
#[derive(Serialize, ToSchema)]
pub struct ChatBody {
    /// The conversation, oldest first, at least one message
    #[schema(min_items = 1)]
    messages: Vec<ChatMessage>,
    /// The served model; another is a 404
    model: Option<String>,
    /// Tools that the model may call
    tools: Option<Vec<ChatTool>>,
    /// Whether it must; by default as it likes
    tool_choice: Option<ChatToolChoice>,
    /// Whether one answer may hold several calls; true by default
    parallel_tool_calls: Option<bool>,
    /// What the content must be; enforced token by token
    response_format: Option<ChatFormat>,
    /// Variables of the chat template, such as `enable_thinking` and `preserve_thinking`
    chat_template_kwargs: Option<TemplateVariables>,
    /// Whether the model thinks first; by default as the template has it
    enable_thinking: Option<bool>,
    /// `none` turns thinking off; the others turn it on, with at most 256, 1024, 4096, 16384 tokens, or no bound
    reasoning_effort: Option<Effort>,
    /// Most tokens of thinking; beats `reasoning_effort`
    thinking_budget: Option<u32>,
    /// The same, as llama.cpp calls it
    thinking_budget_tokens: Option<u32>,
    /// The same, as vLLM calls it
    thinking_token_budget: Option<u32>,
    /// How many answers, each with a seed of its own: 1 to 8
    #[schema(minimum = 1, maximum = 8)]
    n: Option<u32>,
    /// Server-sent events instead of one object
    stream: Option<bool>,
    /// Only with `stream`
    stream_options: Option<StreamOptions>,
    /// Log-probabilities of the content's tokens
    logprobs: Option<bool>,
    /// And of this many of the likeliest; only with `logprobs`
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
    /// Longest answer in tokens; by default to the end of the context
    #[schema(minimum = 1)]
    max_tokens: Option<u32>,
    /// The same under its new name
    #[schema(minimum = 1)]
    max_completion_tokens: Option<u32>,
    #[serde(flatten)]
    sampling: Sampling,
    /// Taken without effect
    user: Option<Value>,
    /// Accepted without effect
    safety_identifier: Option<Value>,
    /// Accepted without effect: everything is cached
    prompt_cache_key: Option<Value>,
    /// Accepted without effect: what is used stays
    prompt_cache_retention: Option<Value>,
    /// Taken without effect
    metadata: Option<Value>,
    /// Only false
    store: Option<bool>,
    /// Only `auto` and `default`
    service_tier: Option<String>,
    /// Only `["text"]`
    modalities: Option<Vec<String>>,
}

/// How tokens are chosen; the model's own values by default
#[derive(Serialize, ToSchema)]
pub struct Sampling {
    /// 0 always takes the likeliest token
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    /// Draw from the smallest set with this probability
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    /// Draw from the k likeliest tokens; 0 is all
    top_k: Option<u32>,
    /// Drop tokens less likely than this times the likeliest
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f32>,
    /// Subtracted from the logits of generated tokens, once
    #[schema(minimum = -2, maximum = 2)]
    presence_penalty: Option<f32>,
    /// Subtracted from the logits of generated tokens, each time
    #[schema(minimum = -2, maximum = 2)]
    frequency_penalty: Option<f32>,
    /// Divides positive logits of tokens of prompt and answer, multiplies others
    #[schema(exclusive_minimum = 0)]
    repetition_penalty: Option<f32>,
    /// Added to the logits of tokens, by id
    logit_bias: Option<BTreeMap<String, f32>>,
    /// Up to 16 texts before the first of which the content ends
    stop: Option<Stop>,
    /// The same seed, the same text
    seed: Option<i64>,
}

/// One text or several
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Stop {
    /// One
    One(String),
    /// Several
    Several(Vec<String>),
}

/// What a stream says beside the answer
#[derive(Serialize, ToSchema)]
pub struct StreamOptions {
    /// A last chunk with token counts
    include_usage: Option<bool>,
}

/// A word of effort
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

/// Variables of the chat template
#[derive(Serialize, ToSchema)]
pub struct TemplateVariables {
    /// Whether the model thinks first
    enable_thinking: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A message
#[derive(Serialize, ToSchema)]
pub struct ChatMessage {
    /// System messages are one at the front, wherever they stand; developer is system
    role: ChatRole,
    /// Null and absent are the empty text
    content: Option<ChatContent>,
    /// Of the assistant: what it thought
    reasoning_content: Option<String>,
    /// The same under another name
    reasoning: Option<String>,
    /// Of the assistant: what it called
    tool_calls: Option<Vec<ChatCall>>,
    /// Of a tool: the call that it answers
    tool_call_id: Option<String>,
    /// Of a tool: its name
    name: Option<String>,
    /// Of the assistant: only `[]`
    annotations: Option<Vec<Value>>,
}

/// Who speaks
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A text, or parts that are joined
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ChatContent {
    Text(String),
    Parts(Vec<TextPart>),
}

/// A part that is text
#[derive(Serialize, ToSchema)]
pub struct TextPart {
    /// Only `text`
    r#type: String,
    text: String,
}

/// A call in the history
#[derive(Serialize, ToSchema)]
pub struct ChatCall {
    id: Option<String>,
    /// Streams number their calls; the order says the same
    index: Option<u32>,
    /// Only `function`
    r#type: Option<String>,
    function: ChatCalled,
}

/// The function and its arguments
#[derive(Serialize, ToSchema)]
pub struct ChatCalled {
    name: String,
    /// The JSON text of an object, or the object
    arguments: Option<Value>,
}

/// A tool
#[derive(Serialize, ToSchema)]
pub struct ChatTool {
    /// Only `function`
    r#type: String,
    function: ChatFunction,
}

/// What the model is told of it
#[derive(Serialize, ToSchema)]
pub struct ChatFunction {
    name: String,
    description: Option<String>,
    /// The JSON schema of its arguments
    parameters: Option<Map<String, Value>>,
    /// Whether the arguments must obey the schema
    strict: Option<bool>,
}

/// A word, or one tool
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ChatToolChoice {
    /// `none`, `auto` or `required`
    Word(String),
    /// This one
    Named(NamedChoice),
}

/// One tool
#[derive(Serialize, ToSchema)]
pub struct NamedChoice {
    /// Only `function`
    r#type: String,
    function: NamedFunction,
}

/// Its name
#[derive(Serialize, ToSchema)]
pub struct NamedFunction {
    name: String,
}

/// What the content must be
#[derive(Serialize, ToSchema)]
pub struct ChatFormat {
    /// `text`, `json_object` or `json_schema`
    r#type: String,
    /// With `json_schema`
    json_schema: Option<NamedSchema>,
}

/// A schema with its name
#[derive(Serialize, ToSchema)]
pub struct NamedSchema {
    name: Option<String>,
    description: Option<String>,
    /// The schema; an unsupported keyword is a 400
    schema: Map<String, Value>,
    /// It is enforced either way
    strict: Option<bool>,
}

/// A request to `/v1/completions`
#[derive(Serialize, ToSchema)]
pub struct CompletionBody {
    /// A text, token ids, or several of either; each is a choice of its own
    prompt: CompletionPrompt,
    /// The served model; another is a 404
    model: Option<String>,
    /// The text begins with the prompt
    echo: Option<bool>,
    /// Log-probabilities of the tokens, of the prompt's too with `echo`, and of this many of the likeliest
    #[schema(minimum = 0, maximum = 20)]
    logprobs: Option<u32>,
    /// How many answers to each prompt, each with a seed of its own: 1 to 8
    #[schema(minimum = 1, maximum = 8)]
    n: Option<u32>,
    /// Only the value of `n`
    best_of: Option<u32>,
    /// Server-sent events instead of one object
    stream: Option<bool>,
    /// Only with `stream`
    stream_options: Option<StreamOptions>,
    /// Longest answer in tokens; 16 by default; 0 only with `echo`
    max_tokens: Option<u32>,
    #[serde(flatten)]
    sampling: Sampling,
    /// Taken without effect
    user: Option<String>,
}

/// What is continued
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum CompletionPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

/// A request to `/tokenize`: a text or a conversation
#[derive(Serialize, ToSchema)]
pub struct TokenizeBody {
    /// Taken without effect
    model: Option<String>,
    /// A text as it stands
    prompt: Option<String>,
    /// Without `prompt`: a conversation, as for a chat
    messages: Option<Vec<ChatMessage>>,
    tools: Option<Vec<ChatTool>>,
    tool_choice: Option<ChatToolChoice>,
    parallel_tool_calls: Option<bool>,
    chat_template_kwargs: Option<TemplateVariables>,
    enable_thinking: Option<bool>,
    reasoning_effort: Option<Effort>,
    thinking_budget: Option<u32>,
    thinking_budget_tokens: Option<u32>,
    thinking_token_budget: Option<u32>,
}

/// A request to `/detokenize`
#[derive(Serialize, ToSchema)]
pub struct DetokenizeBody {
    /// Taken without effect
    model: Option<String>,
    /// Token ids
    tokens: Vec<u32>,
}

/// What an error looks like
#[derive(Serialize, ToSchema)]
pub struct ErrorBody {
    error: ErrorDetails,
}

/// What is wrong
#[derive(Serialize, ToSchema)]
pub struct ErrorDetails {
    /// In a sentence
    message: String,
    /// `invalid_request_error` or `server_error`
    r#type: String,
    /// The field that is wrong
    param: Option<String>,
    /// For programs
    code: Option<String>,
}

/// What an error looks like on Anthropic's routes
#[derive(Serialize, ToSchema)]
pub struct AnthropicErrorBody {
    /// `error`
    r#type: String,
    error: AnthropicErrorDetails,
}

/// What is wrong
#[derive(Serialize, ToSchema)]
pub struct AnthropicErrorDetails {
    r#type: String,
    /// In a sentence
    message: String,
}

/// The served model
#[derive(Serialize, ToSchema)]
pub struct ModelBody {
    id: String,
    /// `model`
    object: String,
    /// When it was loaded, Unix seconds
    created: u64,
    owned_by: String,
    /// Positions that the context has
    context_length: usize,
}

/// A list of one
#[derive(Serialize, ToSchema)]
pub struct ModelsBody {
    /// `list`
    object: String,
    data: Vec<ModelBody>,
}

/// Whether the server is well
#[derive(Serialize, ToSchema)]
pub struct HealthBody {
    /// `ok` or `stopped`
    status: String,
}

/// A text
#[derive(Serialize, ToSchema)]
pub struct TextBody {
    prompt: String,
}

/// How long a prompt is
#[derive(Serialize, ToSchema)]
pub struct CountBody {
    input_tokens: usize,
}

/// What may be answered instead, on every route that takes a body.
#[derive(utoipa::IntoResponses)]
pub enum Refusals {
    /// A field is wrong or unknown, or the request cannot run
    #[response(status = 400)]
    Wrong(ErrorBody),
    /// A key is needed
    #[response(status = 401)]
    Stranger(ErrorBody),
    /// A foreign Host or Origin
    #[response(status = 403)]
    Foreign(ErrorBody),
    /// Another model than the served one
    #[response(status = 404)]
    Elsewhere(ErrorBody),
    /// The body did not arrive in time
    #[response(status = 408)]
    Slow(ErrorBody),
    /// The body is too large
    #[response(status = 413)]
    Large(ErrorBody),
    /// The server failed
    #[response(status = 500)]
    Failed(ErrorBody),
    /// Too many requests wait, or the server is shutting down; see `retry-after`
    #[response(status = 503)]
    Busy(ErrorBody),
}

/// The same on Anthropic's routes.
#[derive(utoipa::IntoResponses)]
pub enum AnthropicRefusals {
    /// A field is wrong or unknown, or the request cannot run
    #[response(status = 400)]
    Wrong(AnthropicErrorBody),
    /// A key is needed
    #[response(status = 401)]
    Stranger(AnthropicErrorBody),
    /// A foreign Host or Origin
    #[response(status = 403)]
    Foreign(AnthropicErrorBody),
    /// Another model than the served one
    #[response(status = 404)]
    Elsewhere(AnthropicErrorBody),
    /// The body did not arrive in time
    #[response(status = 408)]
    Slow(AnthropicErrorBody),
    /// The body is too large
    #[response(status = 413)]
    Large(AnthropicErrorBody),
    /// The server failed
    #[response(status = 500)]
    Failed(AnthropicErrorBody),
    /// Too many requests wait, or the server is shutting down; see `retry-after`
    #[response(status = 503)]
    Busy(AnthropicErrorBody),
}

/// What may be answered instead, on routes without a body.
#[derive(utoipa::IntoResponses)]
pub enum Strangers {
    /// A key is needed
    #[response(status = 401)]
    Stranger(ErrorBody),
    /// A foreign Host or Origin
    #[response(status = 403)]
    Foreign(ErrorBody),
}
