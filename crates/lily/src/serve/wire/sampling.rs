//! The fields that say how tokens are chosen and how many answers there are, as OpenAI's two old APIs share them.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::fields::{Fields, Kind};
use crate::flags::SamplingFlags;
use crate::serve::error::ApiError;

/// Most answers to one prompt.
pub const MAX_ANSWERS: usize = 8;

/// Everything that chooses tokens; the limit on them has other names elsewhere.
pub fn sampling(fields: &mut Fields) -> Result<SamplingFlags, ApiError> {
    Ok(SamplingFlags {
        temperature: fields.take("temperature")?,
        top_k: fields.take("top_k")?,
        top_p: fields.take("top_p")?,
        min_p: fields.take("min_p")?,
        presence_penalty: fields.take("presence_penalty")?,
        frequency_penalty: fields.take("frequency_penalty")?,
        repetition_penalty: fields.take("repetition_penalty")?,
        logit_bias: logit_bias(fields)?,
        stop: stop(fields, "stop")?,
        seed: fields.take::<i64>("seed")?.map(i64::cast_unsigned),
        max_tokens: fields.take("max_tokens")?,
    })
}

/// How many answers to each prompt.
pub fn answers(fields: &mut Fields) -> Result<usize, ApiError> {
    match fields.take::<usize>("n")? {
        None => Ok(1),
        Some(n) if (1..=MAX_ANSWERS).contains(&n) => Ok(n),
        Some(n) => Err(fields.error("n", format!("{n} is not in [1, {MAX_ANSWERS}]"))),
    }
}

/// Whether a stream ends with a chunk of token counts.
pub fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take::<Map<String, Value>>("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(fields.error("stream_options", "allowed only with stream: true"));
    }
    let mut options = Fields::new(options.into(), "stream_options")?;
    let include_usage = options.take("include_usage")?.unwrap_or(false);
    options.finish()?;
    Ok(include_usage)
}

/// An object from token id to bias; ids are JSON's strings.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let biases: Map<String, Value> = fields.take("logit_bias")?.unwrap_or_default();
    let bias = |(id, bias): (String, Value)| {
        let of_id = id.parse().map_err(|_| fields.error("logit_bias", format!("{id:?} is not a token id")))?;
        let number = f32::read(&bias)
            .ok_or_else(|| fields.error("logit_bias", format!("{bias} for id {id} is not {}", f32::words(&bias))))?;
        Ok((of_id, number))
    };
    biases.into_iter().map(bias).collect()
}

/// One string or several.
pub fn stop(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    match fields.take::<Value>(name)? {
        None => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop]),
        Some(Value::Array(several)) => strings(fields, name, &several),
        Some(other) => Err(fields.wrong(name, "a string or an array of strings", &other)),
    }
}

/// The strings of an array.
pub fn strings(fields: &Fields, name: &str, several: &[Value]) -> Result<Vec<String>, ApiError> {
    let of = |(i, item): (usize, &Value)| {
        String::deserialize(item).map_err(|_| fields.wrong(&format!("{name}[{i}]"), String::WORDS, item))
    };
    several.iter().enumerate().map(of).collect()
}
