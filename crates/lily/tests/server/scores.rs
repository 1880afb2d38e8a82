//! Scores of tokens, as evaluation harnesses ask for them.

use serde_json::{Value, json};

use super::{Server, http};

fn completions(server: &Server, mut body: Value, stream: bool) -> Vec<Value> {
    body["stream"] = stream.into();
    let reply = http::post(&server.address, "/v1/completions", &body.to_string());
    assert_eq!(reply.status, 200, "{}", reply.body);
    if !stream {
        return vec![serde_json::from_str(&reply.body).expect("JSON")];
    }
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

/// Each of these lists, joined over the chunks of a reply.
fn joined(chunks: &[Value], list: &str) -> Vec<Value> {
    let of = |chunk: &Value| chunk["choices"][0]["logprobs"][list].as_array().cloned().unwrap_or_default();
    chunks.iter().flat_map(of).collect()
}

/// `<|im_start|>` of the built-in model, which ends no answer.
const CONTROL: &str = "4071";

/// A harness cuts the list at the prompt's length: a token too few would move all others.
#[test]
fn every_generated_token_has_its_score_with_text_or_without() {
    let server = Server::start(&[]);
    for bias in [100.0, 25.0, 15.0, 0.0] {
        for echo in [true, false] {
            let body = json!({
                "prompt": [300, 301, 302, 303], "max_tokens": 12, "temperature": 1, "seed": 5, "echo": echo, "logprobs": 2,
                "logit_bias": {CONTROL: bias},
            });
            let whole = completions(&server, body.clone(), false);
            let count = whole[0]["usage"]["completion_tokens"].as_u64().expect("a count") as usize;
            let want = count + if echo { 4 } else { 0 };
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                assert_eq!(joined(&whole, list).len(), want, "{list}, bias {bias}: {whole:?}");
                let streamed = completions(&server, body.clone(), true);
                assert_eq!(joined(&streamed, list), joined(&whole, list), "{list}, bias {bias}");
            }
        }
    }
}
