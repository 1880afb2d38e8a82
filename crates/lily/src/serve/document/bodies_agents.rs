//! The bodies of the two APIs that agents use: OpenAI's responses and Anthropic's messages.
#![allow(dead_code)] // they are only described

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::bodies::{Effort, TemplateVariables};

/// A request to `/v1/responses`; nothing is kept between requests
#[derive(Serialize, ToSchema)]
pub struct ResponsesBody {
    /// A text, or the items of a conversation
    input: ResponsesInput,
    /// The served model; another is a 404
    model: Option<String>,
    /// A system message in front of the input
    instructions: Option<String>,
    /// Tools that the model may call
    tools: Option<Vec<ResponsesTool>>,
    /// Whether it must; by default as it likes
    tool_choice: Option<ResponsesToolChoice>,
    /// Whether one answer may hold several calls; true by default
    parallel_tool_calls: Option<bool>,
    /// How long the model thinks
    reasoning: Option<Reasoning>,
    /// Whether the model thinks first; by default as the template has it
    enable_thinking: Option<bool>,
    /// As in a chat
    reasoning_effort: Option<Effort>,
    /// Most tokens of thinking
    thinking_budget: Option<u32>,
    /// The same, as llama.cpp calls it
    thinking_budget_tokens: Option<u32>,
    /// The same, as vLLM calls it
    thinking_token_budget: Option<u32>,
    /// Variables of the chat template
    chat_template_kwargs: Option<TemplateVariables>,
    /// What the text must be; enforced token by token
    text: Option<ResponsesText>,
    /// 0 always takes the likeliest token
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    /// Draw from the smallest set with this probability
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    /// Longest answer in tokens, thinking included; by default to the end of the context
    #[schema(minimum = 1)]
    max_output_tokens: Option<u32>,
    /// Server-sent events instead of one object
    stream: Option<bool>,
    /// Only `{"include_obfuscation": false}`
    stream_options: Option<Value>,
    /// Only false
    store: Option<bool>,
    /// Only false
    background: Option<bool>,
    /// Only `disabled`
    truncation: Option<String>,
    /// Only `auto` and `default`
    service_tier: Option<String>,
    /// Only 0
    top_logprobs: Option<u32>,
    /// Only `["reasoning.encrypted_content"]`, which comes unsealed
    include: Option<Vec<String>>,
    /// Repeated in the response
    metadata: Option<Map<String, Value>>,
    /// Taken without effect
    user: Option<Value>,
    /// Taken without effect
    safety_identifier: Option<Value>,
    /// Taken without effect: what is cached is found without it
    prompt_cache_key: Option<Value>,
    /// Taken without effect
    prompt_cache_retention: Option<Value>,
    /// Taken without effect
    client_metadata: Option<Value>,
}

/// A text, or items
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ResponsesInput {
    Text(String),
    Items(Vec<ResponsesItem>),
}

/// One item; which fields count depends on `type`
#[derive(Serialize, ToSchema)]
pub struct ResponsesItem {
    /// `message` by default, `reasoning`, `function_call`, `function_call_output`
    r#type: Option<String>,
    id: Option<String>,
    status: Option<String>,
    /// Of a message: system, developer, user or assistant
    role: Option<String>,
    /// Of a message: text, or parts; of reasoning: its parts
    content: Option<ResponsesParts>,
    /// Of a message: taken without effect
    phase: Option<String>,
    /// Of reasoning: counts where there is no content
    summary: Option<Vec<SummaryPart>>,
    /// Of reasoning: taken without effect
    encrypted_content: Option<String>,
    /// Of a call and its output
    call_id: Option<String>,
    /// Of a call
    name: Option<String>,
    /// Of a call: the JSON text of an object
    arguments: Option<Value>,
    /// Of a call's output: text, or parts
    output: Option<ResponsesParts>,
}

/// A text, or parts that are joined
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ResponsesParts {
    Text(String),
    Parts(Vec<ResponsesPart>),
}

/// A part that is text
#[derive(Serialize, ToSchema)]
pub struct ResponsesPart {
    /// `input_text`, `output_text`, `text` or `reasoning_text`
    r#type: String,
    text: String,
    /// Taken without effect
    annotations: Option<Vec<Value>>,
    /// Taken without effect
    logprobs: Option<Vec<Value>>,
}

/// A part of a summary
#[derive(Serialize, ToSchema)]
pub struct SummaryPart {
    /// Only `summary_text`
    r#type: String,
    text: String,
}

/// A tool
#[derive(Serialize, ToSchema)]
pub struct ResponsesTool {
    /// Only `function`
    r#type: String,
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
pub enum ResponsesToolChoice {
    /// `none`, `auto` or `required`
    Word(String),
    /// This one
    Named(ResponsesNamedChoice),
}

/// One tool
#[derive(Serialize, ToSchema)]
pub struct ResponsesNamedChoice {
    /// Only `function`
    r#type: String,
    name: String,
}

/// How long the model thinks
#[derive(Serialize, ToSchema)]
pub struct Reasoning {
    /// As `reasoning_effort` of a chat
    effort: Option<Effort>,
    /// Taken: thoughts come whole
    summary: Option<String>,
    /// The same under its old name
    generate_summary: Option<String>,
}

/// What the text must be
#[derive(Serialize, ToSchema)]
pub struct ResponsesText {
    format: Option<ResponsesFormat>,
    /// Only `medium`
    verbosity: Option<String>,
}

/// What the text must be
#[derive(Serialize, ToSchema)]
pub struct ResponsesFormat {
    /// `text`, `json_object` or `json_schema`
    r#type: String,
    name: Option<String>,
    description: Option<String>,
    /// With `json_schema`
    schema: Option<Map<String, Value>>,
    /// It is enforced either way
    strict: Option<bool>,
}

/// A response
#[derive(Serialize, ToSchema)]
pub struct ResponseBody {
    id: String,
    /// `response`
    object: String,
    created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`
    status: String,
    /// Items of type `reasoning`, `message` and `function_call`
    output: Vec<Value>,
    model: String,
    /// Token counts
    usage: Option<Value>,
}

/// A request to `/v1/messages`
#[derive(Serialize, ToSchema)]
pub struct MessagesBody {
    /// Longest answer in tokens, thinking included
    #[schema(minimum = 1)]
    max_tokens: u32,
    #[serde(flatten)]
    conversation: CountTokensBody,
    /// Server-sent events instead of one object
    stream: Option<bool>,
    /// Up to 16 texts before the first of which the text ends
    #[schema(max_items = 16)]
    stop_sequences: Option<Vec<String>>,
    /// 0 always takes the likeliest token
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    /// Draw from the smallest set with this probability
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    /// Draw from the k likeliest tokens; 0 is all
    top_k: Option<u32>,
    metadata: Option<AnthropicMetadata>,
    /// Only `auto` and `standard_only`
    service_tier: Option<String>,
}

/// A request to `/v1/messages/count_tokens`: all that makes the prompt
#[derive(Serialize, ToSchema)]
pub struct CountTokensBody {
    /// The served model; another is a 404
    model: Option<String>,
    /// A text, or text blocks, which are paragraphs
    system: Option<AnthropicTexts>,
    /// The conversation, oldest first, at least one message
    #[schema(min_items = 1)]
    messages: Vec<AnthropicTurn>,
    /// Tools that the model may call
    tools: Option<Vec<AnthropicTool>>,
    /// Whether it must; by default as it likes
    tool_choice: Option<AnthropicToolChoice>,
    /// Off by default
    thinking: Option<AnthropicThinking>,
    /// Effort and format
    output_config: Option<AnthropicOutput>,
    /// Only edits that keep everything
    context_management: Option<Value>,
}

/// Whose request it is
#[derive(Serialize, ToSchema)]
pub struct AnthropicMetadata {
    /// Taken without effect
    user_id: Option<String>,
}

/// A text, or text blocks
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnthropicTexts {
    Text(String),
    Blocks(Vec<AnthropicText>),
}

/// A text block
#[derive(Serialize, ToSchema)]
pub struct AnthropicText {
    /// Only `text`
    r#type: String,
    text: String,
    cache_control: Option<CacheControl>,
    /// Only `[]`
    citations: Option<Vec<Value>>,
}

/// Taken without effect: everything is cached without being asked
#[derive(Serialize, ToSchema)]
pub struct CacheControl {
    /// Only `ephemeral`
    r#type: String,
    ttl: Option<String>,
    scope: Option<String>,
}

/// A message
#[derive(Serialize, ToSchema)]
pub struct AnthropicTurn {
    /// `user`, `assistant` or `system`
    role: String,
    content: AnthropicContent,
}

/// A text, or blocks
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnthropicContent {
    Text(String),
    Blocks(Vec<AnthropicBlock>),
}

/// A block; which fields count depends on `type`
#[derive(Serialize, ToSchema)]
pub struct AnthropicBlock {
    /// `text`; of the assistant `thinking` and `tool_use`; of the user `tool_result`
    r#type: String,
    text: Option<String>,
    thinking: Option<String>,
    /// Taken without effect
    signature: Option<String>,
    /// Of a call
    id: Option<String>,
    /// Of a call
    name: Option<String>,
    /// Of a call
    input: Option<Map<String, Value>>,
    /// Of a result: the call that it answers
    tool_use_id: Option<String>,
    /// Of a result
    content: Option<AnthropicTexts>,
    /// Of a result: taken without effect, the text tells
    is_error: Option<bool>,
    cache_control: Option<CacheControl>,
    /// Only `[]`
    citations: Option<Vec<Value>>,
}

/// A tool
#[derive(Serialize, ToSchema)]
pub struct AnthropicTool {
    /// Only `custom`
    r#type: Option<String>,
    name: String,
    description: Option<String>,
    /// The JSON schema of its arguments
    input_schema: Map<String, Value>,
    /// Whether the arguments must obey the schema
    strict: Option<bool>,
    cache_control: Option<CacheControl>,
    /// Only false
    defer_loading: Option<bool>,
    /// Taken without effect: arguments always come whole
    eager_input_streaming: Option<bool>,
}

/// Whether the model must call
#[derive(Serialize, ToSchema)]
pub struct AnthropicToolChoice {
    /// `auto`, `any`, `tool` or `none`
    r#type: String,
    /// With `tool`
    name: Option<String>,
    /// One call at most
    disable_parallel_tool_use: Option<bool>,
}

/// Whether and how long the model thinks
#[derive(Serialize, ToSchema)]
pub struct AnthropicThinking {
    /// `enabled`, `adaptive` or `disabled`
    r#type: String,
    /// With `enabled`: most tokens of thinking
    budget_tokens: Option<u32>,
    /// Only `summarized` and `full`; thoughts come whole
    display: Option<String>,
}

/// Effort and format
#[derive(Serialize, ToSchema)]
pub struct AnthropicOutput {
    /// `low` to `max`: where thinking is on, how long
    effort: Option<String>,
    format: Option<AnthropicFormat>,
}

/// What the text must be
#[derive(Serialize, ToSchema)]
pub struct AnthropicFormat {
    /// Only `json_schema`
    r#type: String,
    schema: Map<String, Value>,
    name: Option<String>,
    description: Option<String>,
    strict: Option<bool>,
}
