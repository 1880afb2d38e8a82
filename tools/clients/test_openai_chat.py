"""The official openai client against chat completions, as its documentation uses it."""

import copy
import json
import time
from typing import Literal

import openai
import pydantic
import pytest

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SUM = [{"role": "user", "content": "What is 27 + 58?"}]
STORY = [{"role": "user", "content": "Tell me a story about a fox named Rosa."}]
WEATHER = [{"role": "user", "content": "What is the weather in Dublin?"}]
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "name of the city"}},
            "required": ["city"],
        },
    },
}]


@pytest.fixture(scope="module")
def client(demo):
    return openai.OpenAI(base_url=demo.base, api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def chat(client, demo):
    def create(messages, **more):
        more.setdefault("extra_body", QUIET)
        more.setdefault("temperature", 0)
        return client.chat.completions.create(model=demo.model, messages=messages, **more)
    return create


def test_models(client, demo):
    models = client.models.list().data
    assert [model.id for model in models] == [demo.model] and models[0].object == "model"
    assert client.models.retrieve(demo.model).id == demo.model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_an_answer_with_its_usage(chat, demo):
    reply = chat(FRANCE)
    choice = reply.choices[0]
    assert "Paris" in choice.message.content and choice.finish_reason == "stop" and choice.message.role == "assistant"
    assert reply.object == "chat.completion" and reply.model == demo.model and abs(reply.created - time.time()) < 60
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens > 1
    again = chat(FRANCE).usage
    assert 0 < again.prompt_tokens_details.cached_tokens < again.prompt_tokens


def test_a_stream_is_the_same_answer(chat):
    whole = chat(SUM, extra_body={}).choices[0].message
    chunks = list(chat(SUM, extra_body={}, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant" and len(deltas) > 5
    assert "".join(delta.content or "" for delta in deltas) == whole.content
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == whole.reasoning_content
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    without = list(chat(SUM, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in without)


def test_thinking_is_a_field_of_its_own_and_can_be_switched(chat):
    thought = chat(SUM, extra_body={"chat_template_kwargs": {"enable_thinking": True}}).choices[0].message
    assert thought.reasoning_content and "85" in thought.content and "<think>" not in thought.content
    plain = chat(SUM).choices[0].message
    assert not getattr(plain, "reasoning_content", None)
    assert not getattr(chat(SUM, extra_body={}, reasoning_effort="none").choices[0].message, "reasoning_content", None)
    history = SUM + [{"role": "assistant", "content": thought.content, "reasoning_content": thought.reasoning_content}]
    assert chat(history + FRANCE).choices[0].message.content


def test_the_stream_helper(client, demo):
    with client.chat.completions.stream(model=demo.model, messages=FRANCE, temperature=0, extra_body=QUIET) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in events and "content.done" in events
    assert "Paris" in final.choices[0].message.content and final.choices[0].finish_reason == "stop"


def test_a_tool_is_called(chat):
    reply = chat(WEATHER, tools=TOOLS).choices[0]
    assert reply.finish_reason == "tool_calls" and not reply.message.content
    [call] = reply.message.tool_calls
    assert call.type == "function" and call.function.name == "get_weather" and call.id
    assert json.loads(call.function.arguments) == {"city": "Dublin"}


def test_a_streamed_call_has_index_and_one_id(chat):
    chunks = [chunk for chunk in chat(WEATHER, tools=TOOLS, stream=True) if chunk.choices]
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0].id and pieces[0].function.name == "get_weather" and pieces[0].type == "function"
    assert {piece.index for piece in pieces} == {0}
    assert all(piece.id in (None, pieces[0].id) and not piece.function.name for piece in pieces[1:])
    assert json.loads("".join(piece.function.arguments or "" for piece in pieces)) == {"city": "Dublin"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_stream_helper_puts_calls_together(client, demo):
    with client.chat.completions.stream(
        model=demo.model, messages=WEATHER, temperature=0, tools=TOOLS, extra_body=QUIET
    ) as stream:
        list(stream)
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Dublin"}


def test_the_loop_of_tools_ends_with_an_answer(chat):
    first = chat(WEATHER, tools=TOOLS).choices[0].message
    history = WEATHER + [
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": '{"temperature": 12, "sky": "rainy"}'},
    ]
    reply = chat(history, tools=TOOLS)
    assert reply.choices[0].finish_reason == "stop" and "rain" in reply.choices[0].message.content
    assert reply.usage.prompt_tokens_details.cached_tokens > 0


@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "function": {"name": "get_weather"}}],
                         ids=["none", "auto", "required", "named"])
def test_tool_choice(chat, unless_absent, choice):
    with unless_absent("tool_choice"):
        tools = copy.deepcopy(TOOLS)
        tools[0]["function"]["parameters"]["properties"]["city"]["enum"] = ["Dublin", "Lisbon"]
        message = chat(SUM, tools=tools, tool_choice=choice, max_tokens=200).choices[0].message
        if choice in ("none", "auto"):
            assert not message.tool_calls and message.content
        else:
            assert {call.function.name for call in message.tool_calls} == {"get_weather"}
            assert json.loads(message.tool_calls[0].function.arguments)["city"] in ("Dublin", "Lisbon")


class Person(pydantic.BaseModel):
    """With bounds: the small model, made to write what it never would, does not end a text or a number by itself."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)
    colors: list[Literal["red", "green", "blue"]] = pydantic.Field(max_length=3)


def test_parse_gives_an_object_of_the_schema(client, demo, unless_absent):
    with unless_absent("response_format"):
        messages = [{"role": "user", "content": "Ada is 36 years old and likes green."}]
        reply = client.chat.completions.parse(
            model=demo.model, messages=messages, temperature=0, response_format=Person, max_tokens=400, extra_body=QUIET)
        person = reply.choices[0].message.parsed
        assert isinstance(person, Person)


def test_json_object(chat, unless_absent):
    with unless_absent("response_format"):
        reply = chat(STORY, response_format={"type": "json_object"}, max_tokens=300).choices[0]
        assert reply.finish_reason == "length" or isinstance(json.loads(reply.message.content), dict)
    assert chat(FRANCE, response_format={"type": "text"}).choices[0].message.content


def test_logprobs(chat):
    for stream in (False, True):
        if stream:
            chunks = chat(FRANCE, logprobs=True, top_logprobs=3, stream=True)
            tokens = [token for chunk in chunks if chunk.choices and chunk.choices[0].logprobs
                      for token in chunk.choices[0].logprobs.content]
        else:
            reply = chat(FRANCE, logprobs=True, top_logprobs=3).choices[0]
            tokens = reply.logprobs.content
        text = b"".join(bytes(token.bytes) for token in tokens).decode()
        assert text == "The capital of France is Paris."
        for token in tokens:
            assert len(token.top_logprobs) == 3 and token.logprob <= 0
            assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest"
    assert chat(FRANCE).choices[0].logprobs is None


def test_several_answers(chat, unless_absent):
    with unless_absent("n"):
        reply = chat(STORY, n=3, temperature=1, seed=3, max_tokens=12)
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        assert len({choice.message.content for choice in reply.choices}) > 1
        assert reply.usage.completion_tokens <= 36
        texts = {0: "", 1: "", 2: ""}
        for chunk in chat(STORY, n=3, temperature=1, seed=3, max_tokens=12, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert [texts[choice.index] for choice in reply.choices] == [choice.message.content for choice in reply.choices]


def test_c56_a_seed_gives_the_same_text(chat):
    text = lambda seed: chat(STORY, temperature=1, seed=seed, max_tokens=24).choices[0].message.content
    assert text(7) == text(7) == text(7)
    assert len({text(seed) for seed in (7, 8, 9, 10)}) > 1


def test_stop_strings(chat):
    whole = chat(FRANCE).choices[0].message.content
    for stop in (" is Par", ["nowhere", " is Par"]):
        choice = chat(FRANCE, stop=stop).choices[0]
        assert choice.message.content == whole.split(" is Par")[0] and choice.finish_reason == "stop"


def test_limits(chat):
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        reply = chat(STORY, **limit)
        assert reply.usage.completion_tokens == 3 and reply.choices[0].finish_reason == "length"


def test_penalties_and_bias_are_taken(chat):
    reply = chat(STORY, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"300": -100}, top_p=0.9, max_tokens=8)
    assert reply.choices[0].message.content
    extra = {**QUIET, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    assert chat(STORY, extra_body=extra, max_tokens=8).choices[0].message.content


def test_messages_of_every_form(chat):
    messages = [
        {"role": "developer", "content": "You are a helpful assistant."},
        {"role": "user", "content": [{"type": "text", "text": "My name is Ada."}]},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    assert "Ada" in chat(messages).choices[0].message.content


def test_errors_are_those_of_openai(client, chat, demo):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4o", messages=FRANCE)
    assert error.value.code == "model_not_found" and "gpt-4o" in error.value.message
    for field, value in [("temperature", -1), ("top_p", 2), ("stop", [""]), ("max_tokens", 0), ("max_tokens", -1),
                         ("n", 0), ("logit_bias", {"99999": 1}), ("top_logprobs", 3), ("messages", []), ("seed", "x")]:
        body = {"messages": FRANCE, "extra_body": QUIET, field: value}
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model=demo.model, **body)
        assert field in str(error.value.param or error.value.message), f"{field}: {error.value}"
    with pytest.raises(openai.BadRequestError) as error:
        chat(FRANCE, extra_body={"no_such_field": 1})
    assert "no_such_field" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        chat([{"role": "user", "content": "word " * 60_000}])
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}])


def test_c47_leaving_a_stream_frees_the_engine(client, chat, demo):
    long = [{"role": "user", "content": "Write. " * 10}]
    endless = {**QUIET, "logit_bias": None}
    started = time.monotonic()
    for _ in range(5):
        stream = chat(long, stream=True, temperature=1, seed=1, extra_body=endless, max_tokens=20_000)
        next(iter(stream))
        stream.close()
    assert "Paris" in chat(FRANCE).choices[0].message.content
    assert time.monotonic() - started < 20, "cancelled answers were still being written"


def test_a_random_model_answers_in_valid_text(tiny):
    client = openai.OpenAI(base_url=tiny.base, api_key="none", max_retries=0, timeout=60)
    for seed in range(3):
        create = lambda **more: client.chat.completions.create(
            model=tiny.model, messages=STORY, seed=seed, temperature=1, max_tokens=60, **more)
        whole = create()
        assert whole.choices[0].finish_reason in ("length", "stop", "tool_calls")
        chunks = [chunk.choices[0].delta for chunk in create(stream=True) if chunk.choices]
        message = whole.choices[0].message
        assert "".join(delta.content or "" for delta in chunks) == (message.content or "")
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in chunks)
        assert reasoning == (getattr(message, "reasoning_content", None) or "")


def test_the_raw_response_has_its_headers(client, demo):
    raw = client.chat.completions.with_raw_response.create(model=demo.model, messages=FRANCE, max_tokens=2)
    assert raw.headers["content-type"] == "application/json" and raw.parse().choices


def test_the_async_client_runs_requests_side_by_side(demo):
    import asyncio

    async def ask():
        async with openai.AsyncOpenAI(base_url=demo.base, api_key="none", max_retries=0, timeout=60) as client:
            create = client.chat.completions.create
            replies = [create(model=demo.model, messages=FRANCE, temperature=0, extra_body=QUIET) for _ in range(8)]
            return [reply.choices[0].message.content for reply in await asyncio.gather(*replies)]

    assert set(asyncio.run(ask())) == {"The capital of France is Paris."}
