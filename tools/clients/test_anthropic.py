"""The official anthropic client against messages."""

import anthropic
import pytest

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SUM = [{"role": "user", "content": "What is 27 + 58?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Dublin?"}]
TOOLS = [{
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "name of the city"}},
        "required": ["city"],
    },
}]


@pytest.fixture(scope="module")
def client(demo):
    return anthropic.Anthropic(base_url=demo.root, api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def ask(client, demo, needs):
    needs(demo, "/v1/messages")

    def create(messages, **more):
        more = {"max_tokens": 200, "extra_body": {"temperature": 0}, **more}
        return client.messages.create(model=demo.model, messages=messages, **more)
    return create


def test_a_message(ask, demo):
    reply = ask(FRANCE, system="You are a helpful assistant.")
    assert reply.type == "message" and reply.role == "assistant" and reply.model == demo.model
    assert [block.type for block in reply.content] == ["text"] and "Paris" in reply.content[0].text
    assert reply.stop_reason == "end_turn" and reply.usage.output_tokens > 1
    usage = ask(FRANCE, system="You are a helpful assistant.").usage
    assert usage.cache_read_input_tokens > 0, "the second time, part of it is there"


def test_limits_and_stop_sequences(ask):
    cut = ask(FRANCE, max_tokens=3)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3
    stopped = ask(FRANCE, stop_sequences=[" is Par"])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == " is Par"
    assert stopped.content[0].text == "The capital of France"


def test_a_message_can_think(ask):
    reply = ask(SUM, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048)
    assert [block.type for block in reply.content] == ["thinking", "text"] and reply.content[0].thinking
    plain = ask(SUM, thinking={"type": "disabled"})
    assert [block.type for block in plain.content] == ["text"]
    history = SUM + [{"role": "assistant", "content": [block.model_dump() for block in reply.content]}] + FRANCE
    assert ask(history).content[-1].text


def test_a_streamed_message_has_the_events_of_the_api(client, demo, ask):
    whole = ask(FRANCE)
    with client.messages.stream(model=demo.model, messages=FRANCE, max_tokens=200, extra_body={"temperature": 0}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert {"content_block_start", "content_block_delta", "content_block_stop", "message_delta"} <= set(kinds)
    assert final.content[0].text == whole.content[0].text and final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_is_used_and_its_result_is_read(client, demo, ask):
    first = ask(WEATHER, tools=TOOLS)
    assert first.stop_reason == "tool_use"
    [use] = [block for block in first.content if block.type == "tool_use"]
    assert use.name == "get_weather" and use.input == {"city": "Dublin"} and use.id
    result = {"type": "tool_result", "tool_use_id": use.id, "content": '{"temperature": 12, "sky": "rainy"}'}
    history = WEATHER + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    last = ask(history, tools=TOOLS)
    assert "rainy" in last.content[0].text and last.usage.cache_read_input_tokens > 0
    with client.messages.stream(model=demo.model, messages=WEATHER, tools=TOOLS, max_tokens=200, extra_body={"temperature": 0}) as stream:
        list(stream)
        [use] = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert use.input == {"city": "Dublin"}


def test_tokens_are_counted(client, demo, ask):
    count = client.messages.count_tokens(model=demo.model, messages=FRANCE).input_tokens
    usage = ask(FRANCE).usage
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    with_tools = client.messages.count_tokens(model=demo.model, messages=FRANCE, tools=TOOLS, system="Be kind.")
    assert with_tools.input_tokens > count


def test_errors_are_those_of_anthropic(client, ask):
    with pytest.raises(anthropic.NotFoundError) as error:
        client.messages.create(model="claude-opus", max_tokens=5, messages=FRANCE)
    assert error.value.body["type"] == "error" and error.value.body["error"]["type"] == "not_found_error"
    for field, value in [("temperature", -1), ("max_tokens", 0), ("messages", []), ("stop_sequences", [""])]:
        with pytest.raises(anthropic.BadRequestError) as error:
            ask(**{"messages": FRANCE, **({"extra_body": {field: value}} if field == "temperature" else {field: value})})
        assert field in error.value.body["error"]["message"], f"{field}: {error.value}"
        assert error.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError):
        ask([{"role": "user", "content": "word " * 60_000}])
