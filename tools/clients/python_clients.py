"""Other clients of Python against `lily serve` with the demo model. By hand, from run.sh: python_clients.py BASE_URL"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

BASE = sys.argv[1]
HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(sys.executable).parent
MODEL = "lily-demo"
FRANCE = "What is the capital of France?"
WEATHER = "What is the weather in Dublin?"
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
PERSON = "Ada is 36 years old and likes green."
CHECKS = []
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no list from the network


def check(name):
    return lambda function: CHECKS.append((name, function)) or function


def weather_tool(city):
    """Get the weather in a city.

    Args:
        city: name of the city
    """
    return json.dumps({"temperature": 12, "sky": "rainy"})


# ---- litellm


def litellm_chat(messages, **more):
    import litellm

    return litellm.completion(
        model=f"openai/{MODEL}", api_base=BASE, api_key="none", messages=messages, temperature=0, num_retries=0,
        extra_body=QUIET, **more)


@check("litellm: chat")
def _():
    reply = litellm_chat([{"role": "user", "content": FRANCE}])
    assert "Paris" in reply.choices[0].message.content and reply.usage.total_tokens > 0


@check("litellm: stream")
def _():
    chunks = list(litellm_chat([{"role": "user", "content": FRANCE}], stream=True))
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@check("litellm: tools")
def _():
    function = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
    reply = litellm_chat([{"role": "user", "content": WEATHER}], tools=[{"type": "function", "function": function}])
    assert json.loads(reply.choices[0].message.tool_calls[0].function.arguments) == {"city": "Dublin"}


@check("litellm: errors have their kinds")
def _():
    import litellm

    try:
        litellm_chat([{"role": "user", "content": "word " * 60_000}])
    except litellm.ContextWindowExceededError:
        return
    except litellm.BadRequestError as error:
        assert "context" in str(error)
        return
    raise AssertionError("no error")


# ---- langchain-openai


def langchain(**more):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=BASE, api_key="none", temperature=0, max_retries=0, extra_body=QUIET, **more)


@check("langchain-openai: invoke and stream")
def _():
    model = langchain()
    assert "Paris" in model.invoke(FRANCE).content
    assert "Paris" in "".join(chunk.content for chunk in model.stream(FRANCE))


@check("langchain-openai: bind_tools, with its loop")
def _():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        return weather_tool(city)

    model = langchain().bind_tools([get_weather])
    messages = [HumanMessage(WEATHER)]
    messages.append(model.invoke(messages))
    [call] = messages[-1].tool_calls
    assert call["args"] == {"city": "Dublin"}
    messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    assert "rainy" in model.invoke(messages).content


@check("langchain-openai: with_structured_output by json_schema")
def _():
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        """A person."""
        name: str = Field(max_length=20)
        age: int = Field(ge=0, le=150)

    model = langchain(max_tokens=300).with_structured_output(Person, method="json_schema")
    assert isinstance(model.invoke(PERSON), Person)


# ---- pydantic-ai


def pydantic_agent(**more):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key="none"))
    return Agent(model, model_settings={"temperature": 0, "extra_body": QUIET, "max_tokens": 300}, **more)


@check("pydantic-ai: an agent with a tool")
def _():
    agent = pydantic_agent()
    asked = []

    @agent.tool_plain(docstring_format="google")
    def get_weather(city: str) -> str:
        """Get the weather in a city.

        Args:
            city: name of the city
        """
        asked.append(city)
        return weather_tool(city)

    assert "rainy" in agent.run_sync(WEATHER).output and asked == ["Dublin"]


@check("pydantic-ai: an output type, by a required tool")
def _():
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=20)
        age: int = Field(ge=0, le=150)

    assert isinstance(pydantic_agent(output_type=Person).run_sync(PERSON).output, Person)


# ---- llm


@check("llm: prompt, stream and models")
def _():
    with tempfile.TemporaryDirectory() as folder:
        entry = f"- model_id: lily\n  model_name: {MODEL}\n  api_base: \"{BASE}\"\n"
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(entry)
        env = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
        run = lambda *args: subprocess.run([BIN / "llm", *args], env=env, check=True, capture_output=True, text=True).stdout
        assert "lily" in run("models")
        assert "Paris" in run("-m", "lily", "-o", "temperature", "0", FRANCE)
        assert "Paris" in run("-m", "lily", "-o", "temperature", "0", "--no-stream", FRANCE)


# ---- lm-eval


@check("lm-eval: scores of a task of its own, by token ids with echo and logprobs")
def _():
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": folder, "OPENAI_API_KEY": "none",
               "TOKENIZERS_PARALLELISM": "false"}
        task = (HERE / "lm_eval/facts.yaml").read_text().replace("FOLDER", str(HERE / "lm_eval"))
        pathlib.Path(folder, "facts.yaml").write_text(task)
        args = ["--model", "local-completions", "--tasks", "lily_facts", "--include_path", folder, "--output_path", folder,
                "--model_args", f"model={MODEL},base_url={BASE}/completions,num_concurrent=2,max_retries=1,"
                f"tokenizer_backend=huggingface,tokenizer={HERE.parents[1] / 'models/lily-demo'},tokenized_requests=True"]
        done = subprocess.run([BIN / "lm_eval", "run", *args], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-600:]
        [report] = pathlib.Path(folder).rglob("results_*.json")
        accuracy = json.loads(report.read_text())["results"]["lily_facts"]["acc,none"]
        assert accuracy >= 0.75, f"accuracy {accuracy}"


def main():
    failed = 0
    for name, function in CHECKS:
        try:
            function()
            print(f"ok      {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
    sys.exit(1 if failed else 0)


main()
