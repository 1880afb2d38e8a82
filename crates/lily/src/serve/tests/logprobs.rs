//! Log-probabilities in whole replies and in streams: OpenAI's shape, and the same tokens in both.

use serde_json::{Value, json};

use super::{app, ask, chunks, post, stream};

#[tokio::test]
async fn logprobs_have_openais_shape_and_come_with_their_piece() {
    let (app, _) = app(4);
    let (_, whole) = post(&app, &ask("scored")).await;
    let logprobs = &whole["choices"][0]["logprobs"];
    assert_eq!(logprobs["refusal"], Value::Null);
    let tokens = logprobs["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 4, "the tokens of the content");
    assert_eq!(
        tokens[1],
        json!({
            "token": "el<", "logprob": -0.5, "bytes": [101, 108, 60],
            "top_logprobs": [
                {"token": "x", "logprob": -1.5, "bytes": [120]},
                {"token": "\u{fffd}", "logprob": -1.5, "bytes": [255]},
            ],
        })
    );
    assert_eq!(tokens[3]["top_logprobs"], json!([]));

    let chunks = chunks(&stream(&app, ask("scored")).await.0);
    let of = |i: usize| &chunks[i]["choices"][0];
    assert_eq!(
        (&of(1)["delta"]["content"], of(1)["logprobs"]["content"].as_array().unwrap().len()),
        (&json!("Hel"), 2)
    );
    assert!(of(2).get("logprobs").is_none(), "its token came with the piece before");
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&streamed, tokens, "a stream tells the same tokens");
    let (_, plain) = post(&app, &ask("hello")).await;
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn logprobs_of_an_empty_content_are_an_empty_list_streamed_or_not() {
    let (app, _) = app(4);
    let none = json!({"content": [], "refusal": null});
    for (asked, want) in [(json!(true), &none), (json!(false), &Value::Null), (Value::Null, &Value::Null)] {
        let mut body = ask("thought");
        body["logprobs"] = asked;
        let (_, whole) = post(&app, &body).await;
        assert_eq!(&whole["choices"][0]["logprobs"], want);
        let chunks = chunks(&stream(&app, body).await.0);
        assert_eq!(&chunks[0]["choices"][0]["logprobs"], want, "with the role");
        assert!(chunks[1..].iter().all(|chunk| chunk["choices"][0].get("logprobs").is_none()));
    }
}
