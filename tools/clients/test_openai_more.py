"""The official openai client against completions and responses."""

import json

import openai
import pytest

from test_openai_chat import FRANCE, QUIET, WEATHER

TEXT = "Once upon a time"


@pytest.fixture(scope="module")
def client(demo):
    return openai.OpenAI(base_url=demo.base, api_key="none", max_retries=0, timeout=60)


# ---- /v1/completions


@pytest.fixture
def complete(client, demo, needs):
    needs(demo, "/v1/completions")

    def create(prompt, **more):
        more.setdefault("temperature", 0)
        return client.completions.create(model=demo.model, prompt=prompt, **more)
    return create


def test_a_text_goes_on(complete):
    reply = complete(TEXT, max_tokens=12)
    choice = reply.choices[0]
    assert choice.text and choice.finish_reason == "length" and reply.usage.completion_tokens == 12
    assert reply.object == "text_completion" and choice.logprobs is None
    pieces = list(complete(TEXT, max_tokens=12, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == choice.text
    assert len(complete(TEXT).choices[0].text) > 0 and complete(TEXT).usage.completion_tokens <= 16


def test_scores_of_given_tokens_as_lm_eval_asks(complete, tiny):
    client = openai.OpenAI(base_url=tiny.base, api_key="none", max_retries=0, timeout=60)
    ids = list(b"The quick brown fox")
    create = lambda prompt, limit: client.completions.create(
        model=tiny.model, prompt=prompt, max_tokens=limit, echo=True, logprobs=1, temperature=0, seed=1)
    one = create(ids, 1).choices[0]
    assert len(one.logprobs.token_logprobs) == len(ids) + 1
    assert one.logprobs.token_logprobs[0] is None and all(score <= 0 for score in one.logprobs.token_logprobs[1:])
    assert one.text.startswith("The quick brown fox")
    assert len(one.logprobs.tokens) == len(one.logprobs.text_offset) == len(one.logprobs.top_logprobs) == len(ids) + 1
    both = create([ids, ids[:7]], 1).choices
    assert [choice.index for choice in both] == [0, 1]
    assert both[0].logprobs.token_logprobs == one.logprobs.token_logprobs
    assert both[1].logprobs.token_logprobs[:7] == one.logprobs.token_logprobs[:7]
    alone = create(ids, 0).choices[0]
    assert alone.text == "The quick brown fox" and alone.logprobs.token_logprobs == one.logprobs.token_logprobs[:-1]


def test_several_prompts_keep_their_order(complete):
    reply = complete(["The capital of France is", TEXT], max_tokens=4)
    assert [choice.index for choice in reply.choices] == [0, 1] and reply.choices[0].text != reply.choices[1].text
    assert complete("The capital of France is", max_tokens=4).choices[0].text == reply.choices[0].text


def test_completion_fields_are_refused_by_name(complete):
    for field, value in [("suffix", "x"), ("best_of", 5), ("logprobs", -1)]:
        with pytest.raises(openai.BadRequestError) as error:
            complete(TEXT, max_tokens=1, **{field: value})
        assert field in str(error.value.param or error.value.message)


# ---- /v1/responses


@pytest.fixture
def respond(client, demo, needs):
    needs(demo, "/v1/responses")

    def create(input, **more):
        more.setdefault("temperature", 0)
        more.setdefault("reasoning", {"effort": "none"})
        return client.responses.create(model=demo.model, input=input, **more)
    return create


FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "name of the city"}},
        "required": ["city"],
    },
}


def test_a_response(respond, demo):
    reply = respond("What is the capital of France?")
    assert "Paris" in reply.output_text and reply.status == "completed" and reply.object == "response"
    assert reply.model == demo.model and reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    assert reply.usage.input_tokens_details.cached_tokens >= 0 and reply.error is None
    again = respond(FRANCE, instructions="You are a helpful assistant.")
    assert "Paris" in again.output_text
    cut = respond("Tell me a story about a fox named Rosa.", max_output_tokens=5)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def test_a_response_can_think(respond):
    reply = respond("What is 27 + 58?", reasoning={"effort": "medium"})
    kinds = [item.type for item in reply.output]
    assert kinds == ["reasoning", "message"] and "85" in reply.output_text


def test_a_streamed_response_has_the_events_of_the_api(respond):
    events = list(respond("What is the capital of France?", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    for kind in ("response.output_item.added", "response.content_part.added", "response.output_text.delta",
                 "response.output_text.done", "response.content_part.done", "response.output_item.done"):
        assert kind in kinds, kind
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text and "Paris" in text


def test_the_stream_helper_of_responses(client, demo, respond):
    with client.responses.stream(model=demo.model, input=FRANCE, temperature=0, reasoning={"effort": "none"}) as stream:
        list(stream)
        assert "Paris" in stream.get_final_response().output_text


def test_a_response_calls_a_tool_and_takes_its_result(respond):
    first = respond(WEATHER, tools=[FUNCTION])
    [call] = [item for item in first.output if item.type == "function_call"]
    assert call.name == "get_weather" and json.loads(call.arguments) == {"city": "Dublin"} and call.call_id
    output = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 12, "sky": "rainy"}'}
    history = WEATHER + [item.model_dump(exclude_none=True) for item in first.output] + [output]
    assert "rainy" in respond(history, tools=[FUNCTION]).output_text
    events = list(respond(WEATHER, tools=[FUNCTION], stream=True))
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert json.loads(arguments) == {"city": "Dublin"}


def test_a_response_of_a_schema(client, demo, respond, unless_absent):
    from test_openai_chat import Person

    with unless_absent("text"):
        reply = client.responses.parse(
            model=demo.model, input="Ada is 36 years old and likes green.", text_format=Person, temperature=0,
            max_output_tokens=400, reasoning={"effort": "none"})
        assert isinstance(reply.output_parsed, Person)


def test_responses_refuse_what_they_do_not_keep(respond):
    for field, value in [("previous_response_id", "resp_1"), ("background", True), ("temperature", -1),
                         ("max_output_tokens", 0), ("tools", [{"type": "web_search"}])]:
        with pytest.raises(openai.BadRequestError) as error:
            respond("Hello", **{field: value})
        assert field in str(error.value.param or error.value.message), f"{field}: {error.value}"
