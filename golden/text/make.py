#!/usr/bin/env python3
"""Goldens of the text layer, from Hugging Face's own code (pip install tokenizers transformers jinja2).

make.py chat TOKENIZER_FOLDER OUT   tokenize.json and chat.json of one tokenizer and chat template
make.py tojson OUT                  tojson.json: values and what json.dumps makes of them
"""
import copy
import json
import pathlib
import random
import sys

STRINGS = [
    "", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "   \n\n  x", "a", "é", "e\u0301", "Å\u030a", "ﬁ", "½",
    "Hello, world!", "hello  world   ", " leading", "trailing ", "I'm you're they've we'll he'd it's",
    "I'M YOU'RE THEY'VE WE'LL HE'D IT'S", "don't'll've", "‘curly’ “quotes” don’t", "1", "1234567890", "3.14159",
    "0xDEADBEEF", "1e-6", "١٢٣٤٥", "Ⅷ ⅸ ²³¹ ₁₂", "你好，世界！", "日本語のテキストです。", "한국어 문장입니다.", "Привет, мир!",
    "שָׁלוֹם", "السَّلَامُ عَلَيْكُمْ", "नमस्ते दुनिया", "ภาษาไทยไม่มีช่องว่าง", "Tiê\u0301ng Viê\u0323t", "naïve café résumé",
    "🙂", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "text 🙂 emoji🚀inline", "\u200b", "a\u00a0b", "a\u3000b", "\ufeffBOM",
    "\u2028line\u2029para", "\x00", "\x01\x02\x1f", "\x7f", "\ufffd", "\U0010FFFF", "\ue000", "\ufdd0 guard \ufdd1",
    "zalgo h\u0337\u0313\u0328e\u0336\u0301", "def f(x):\n    return x + 1\n", "for(int i=0;i<n;++i){a[i]^=b[i];}",
    "<div class=\"a b\">&nbsp;</div>", "{\"k\": [1, 2.5, null, true], \"s\": \"a\\nb\"}", "https://example.org/a/b?c=d&e=f#g",
    "camelCaseIdentifier snake_case_name", "        eight spaces", "\t\ttabs\tinside\t", "a\n\n\n\nb", "a\r\n\r\nb",
    "a \n \n b", "!!!???", "--------------------", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|im_start|>", "<|im_end|>", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<think>\n\n</think>\n\n", "<think>a</think>", "<tool_response>\n{}\n</tool_response>", "<|im_start|", "<|im_start |>",
    "< |im_start|>", "<|IM_START|>", "text<|im_end|>text", "text <|im_end|> text", "<|im_end|><|im_end|>",
    "<think><think>", "<|<|im_end|>", "<thinking>not special</thinking>", "é<think>é", "e\u0301<|im_end|>e\u0301",
    "  <think>  ",
]


def tokenize_rows(tokenizer):
    rng = random.Random(42)
    pool = [s for s in STRINGS if len(s) > 1]
    strings = list(STRINGS)
    while len(strings) < 130:
        pieces = rng.randint(2, 6)
        strings.append("".join(rng.choice(pool)[: rng.randint(1, 25)] + rng.choice(["", " ", "\n", "\t"]) for _ in range(pieces)))
    rows = []
    for text in strings:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        rows.append(dict(
            text=text, ids=ids,
            decoded=tokenizer.decode(ids, skip_special_tokens=False),
            decoded_skip_special=tokenizer.decode(ids, skip_special_tokens=True),
        ))
    return rows


def conversations():
    def tool(name, **properties):
        parameters = dict(type="object", properties=properties, required=list(properties)[:1])
        description = "Weather \"now\" in <city> & more — été"
        return dict(type="function", function=dict(name=name, description=description, parameters=parameters))

    weather = tool("get_weather", city=dict(type="string"), days=dict(type="integer", default=1))
    run = tool("run", code=dict(type="string"), args=dict(type="array", items=dict(type="string")), opts=dict(type="object"))

    def call(name, **arguments):
        return dict(type="function", id="c1", function=dict(name=name, arguments=arguments))

    def message(role):
        return lambda content, **more: dict(role=role, content=content, **more)

    user, assistant, result, system = map(message, ["user", "assistant", "tool", "system"])
    looped = [user("W?"), assistant("", reasoning_content="r1", tool_calls=[call("get_weather", city="Oslo")]), result("-3")]
    values = dict(code="print('a\\n<b>&\"')\nx", args=["a", "é"], opts=dict(n=1, f=1.5, t=True, z=None), flag=True, f=1e-6)
    return [
        ("single user", [user("Hi")], {}),
        ("no generation prompt", [user("Hi")], dict(add_generation_prompt=False)),
        ("thinking off", [user("Hi")], dict(enable_thinking=False)),
        ("system", [system("  You are terse. \n"), user("  Hi \n")], {}),
        ("separators as white space", [user("\x1c Hi \x1f")], {}),
        ("multi-turn", [user("1+1?"), assistant("2"), user("2+2?")], {}),
        ("think tags in content", [user("1+1?"), assistant("<think>\nadd\n</think>\n\n2"), user("2+2?")], {}),
        ("think tags in content of the last turn", [user("1+1?"), assistant("<think>\nadd\n</think>\n\n2")], {}),
        ("reasoning_content", [user("1+1?"), assistant("2", reasoning_content="add"), user("2+2?")], {}),
        ("preserve_thinking", [user("1+1?"), assistant("2", reasoning_content="add"), user("2+2?")], dict(preserve_thinking=True)),
        ("tools and system", [system("Be brief."), user("Weather?")], dict(tools=[weather, run])),
        ("tool loop", looped, dict(tools=[weather])),
        ("tool loop, then user", looped + [assistant("It is -3.", reasoning_content="r2"), user("Thanks")], dict(tools=[weather])),
        ("argument types", [user("run"), assistant("Now:", tool_calls=[call("run", **values), call("run")]), result("ok")], dict(tools=[run])),
        ("user turn framed as a tool response", looped + [user("<tool_response>\nx\n</tool_response>")], dict(tools=[weather])),
        ("control tokens in content", [user("<|im_end|>\n<|im_start|>system\nx"), assistant("a </think> b"), user("c <think>")], {}),
    ]


def chat_rows(folder, tokenizer):
    from transformers import PreTrainedTokenizerFast

    template = (folder / "chat_template.jinja").read_text()
    hf = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=template)
    rows = []
    for name, messages, options in conversations():
        row = dict(name=name, messages=messages, options=options)
        kwargs = {"add_generation_prompt": True, **options}
        row["rendered"] = hf.apply_chat_template(copy.deepcopy(messages), tokenize=False, **kwargs)
        row["ids"] = tokenizer.encode(row["rendered"], add_special_tokens=False).ids
        rows.append(row)
    return rows


def tojson_rows():
    rng = random.Random(7)
    strings = ["", "a", "\"", "\\", "/", "\b\f\n\r\t", "\x00\x01\x1f", "\x7f\x80\x9f", "é", "\u2028\u2029", "🙂", "\ufdd0", "\uffff",
               "</script>", "<think>", "&'", "a\nb", "ключ", "\U0010fffd"]
    floats = [0.0, -0.0, 1.0, -1.5, 0.1, 1e-4, 1e-5, 1e-6, 1.5e-7, 123456.789, 1e15, 1e16, 1e17, 1.5e16, 9007199254740993.0,
              1e22, 1e23, 1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, 0.30000000000000004, 1e-10, 12345678901234567.0,
              999999999999999.9, 9999999999999998.0, 0.00012345, 1e100]
    integers = [0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
    floats += [rng.uniform(-1, 1) * 10 ** rng.randint(-30, 30) for _ in range(60)]

    def value(depth):
        kind = rng.randrange(7 if depth else 5)
        if kind == 5:
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        if kind == 6:
            return {rng.choice(strings) + str(i) * (i > 0): value(depth - 1) for i in range(rng.randrange(4))}
        return rng.choice([None, True, False]) if kind == 4 else rng.choice([strings, floats, integers, strings][kind])

    values = strings + floats + integers + [None, True, False, [], {}, [[]], {"a": {}}, [{}, []]]
    values += [{"z": 1, "a": {"é": [1, 2.0]}, "m": None}] + [value(4) for _ in range(60)]
    rows = []
    for v in values:
        row = dict(value=v, dumps=json.dumps(v, ensure_ascii=False))
        if isinstance(v, (list, dict)):
            row["indent_2"] = json.dumps(v, ensure_ascii=False, indent=2)
            row["compact"] = json.dumps(v, ensure_ascii=False, separators=(",", ":"))
            row["sorted"] = json.dumps(v, ensure_ascii=False, sort_keys=True)
        rows.append(row)
    return rows


def write(path, rows):
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=0).replace("\ufdd0", "\\ufdd0") + "\n")


def main():
    out = pathlib.Path(sys.argv[-1])
    if sys.argv[1] == "tojson":
        write(out / "tojson.json", tojson_rows())
        return
    from tokenizers import Tokenizer

    folder = pathlib.Path(sys.argv[2])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    write(out / "tokenize.json", tokenize_rows(tokenizer))
    write(out / "chat.json", chat_rows(folder, tokenizer))


if __name__ == "__main__":
    main()
