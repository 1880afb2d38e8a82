//! Results of tools, in the order of the calls that they answer. Clients send them as they come in, each with the id of
//! its call; templates know no ids, so that order is all the model has.

use serde_json::Value;

use super::TextError;

/// Puts the results behind each message with calls into the order of the calls. Where an id is missing, or two calls
/// have the same one, they stay as they are.
///
/// # Errors
/// A result names no call of that message, or one that has its result.
pub(super) fn order(messages: &mut [Value]) -> Result<(), TextError> {
    let mut at = 0;
    while at < messages.len() {
        let (before, behind) = messages.split_at_mut(at + 1);
        let count = behind.iter().take_while(|message| role(message) == Some("tool")).count();
        if let Some(ids) = call_ids(&before[at]) {
            order_run(&ids, &mut behind[..count], at + 1)?;
        }
        at += 1 + count;
    }
    Ok(())
}

fn role(message: &Value) -> Option<&str> {
    message.get("role").and_then(Value::as_str)
}

/// The ids of a message's calls, if it has calls and each has an id of its own.
fn call_ids(message: &Value) -> Option<Vec<&str>> {
    let calls = message.get("tool_calls")?.as_array()?;
    let ids = calls.iter().map(|call| call.get("id").and_then(Value::as_str)).collect::<Option<Vec<_>>>()?;
    let differ = (1..ids.len()).all(|i| !ids[..i].contains(&ids[i]));
    Some(ids).filter(|ids| !ids.is_empty() && differ)
}

fn order_run(ids: &[&str], results: &mut [Value], first: usize) -> Result<(), TextError> {
    let mut order = Vec::with_capacity(results.len());
    for (i, result) in results.iter().enumerate() {
        let Some(id) = result.get("tool_call_id").and_then(Value::as_str) else { return Ok(()) };
        let wrong = |what: &str| TextError::Message { index: first + i, reason: format!("tool_call_id {id:?} {what}") };
        let place = ids.iter().position(|call| *call == id).ok_or_else(|| wrong("is that of no call before it"))?;
        if order.contains(&place) {
            return Err(wrong("is that of a call which has its result"));
        }
        order.push(place);
    }
    let mut sorted: Vec<(usize, Value)> = order.into_iter().zip(results.iter_mut().map(Value::take)).collect();
    sorted.sort_by_key(|(place, _)| *place);
    results.iter_mut().zip(sorted).for_each(|(result, (_, value))| *result = value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn calls(ids: &[Option<&str>]) -> Value {
        let call = |id: &Option<&str>| json!({"id": id, "function": {"name": "f", "arguments": {}}});
        json!({"role": "assistant", "content": "", "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
    }

    fn result(id: &str) -> Value {
        json!({"role": "tool", "content": format!("of {id}"), "tool_call_id": id})
    }

    fn ordered(mut messages: Vec<Value>) -> Result<Vec<String>, String> {
        order(&mut messages).map_err(|error| error.to_string())?;
        let tools = messages.iter().filter(|message| role(message) == Some("tool"));
        Ok(tools.map(|message| message["content"].as_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn results_stand_in_the_order_of_their_calls() {
        let two = calls(&[Some("a"), Some("b")]);
        let turn = vec![two.clone(), result("b"), result("a"), json!({"role": "user", "content": "?"})];
        assert_eq!(ordered([turn.clone(), turn].concat()).unwrap(), ["of a", "of b", "of a", "of b"]);
        assert_eq!(ordered(vec![two.clone(), result("b")]).unwrap(), ["of b"], "one is still missing");
        let without_id = json!({"role": "tool", "content": "plain"});
        assert_eq!(ordered(vec![two, result("b"), without_id]).unwrap(), ["of b", "plain"]);
        for vague in [calls(&[Some("a"), Some("a")]), calls(&[None, Some("a")])] {
            assert_eq!(ordered(vec![vague, result("x"), result("a")]).unwrap(), ["of x", "of a"]);
        }
        assert_eq!(ordered(vec![result("x")]).unwrap(), ["of x"], "a history that was cut");
    }

    #[test]
    fn a_result_that_answers_no_call_is_named() {
        let one = calls(&[Some("a")]);
        let error = ordered(vec![one.clone(), result("b")]).unwrap_err();
        assert_eq!(error, "messages[1]: tool_call_id \"b\" is that of no call before it");
        let error = ordered(vec![one, result("a"), result("a")]).unwrap_err();
        assert_eq!(error, "messages[2]: tool_call_id \"a\" is that of a call which has its result");
    }
}
