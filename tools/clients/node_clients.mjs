// The clients of Node against `lily serve` with the demo model: openai and the AI SDK. By hand, from run.sh:
//
//   node node_clients.mjs http://127.0.0.1:PORT/v1

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = process.argv[2], model = "lily-demo";
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const provider = createOpenAICompatible({ name: "lily", baseURL, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
const lily = provider(model);

const france = [{ role: "user", content: "What is the capital of France?" }];
const weather = [{ role: "user", content: "What is the weather in Dublin?" }];
const result = '{"temperature": 12, "sky": "rainy"}'; // as the small model has seen results
const quiet = { chat_template_kwargs: { enable_thinking: false } };
const parameters = { type: "object", properties: { city: { type: "string", description: "name of the city" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", description: "Get the weather in a city.", parameters } }];
const person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150), colors: z.array(z.enum(["red", "green", "blue"])).max(3) });

const sdkTools = { get_weather: tool({ description: "Get the weather in a city.", inputSchema: z.object({ city: z.string().describe("name of the city") }), execute: async () => result }) };

const checks = {
  async "openai (Node): models"() {
    return (await client.models.list()).data[0].id === model;
  },
  async "openai (Node): chat"() {
    const reply = await client.chat.completions.create({ model, messages: france, temperature: 0, ...quiet });
    return reply.choices[0].message.content.includes("Paris") && reply.usage.total_tokens > 0;
  },
  async "openai (Node): stream with usage"() {
    const stream = await client.chat.completions.create({ model, messages: france, temperature: 0, stream: true, stream_options: { include_usage: true }, ...quiet });
    let text = "", usage = null;
    for await (const chunk of stream) { text += chunk.choices[0]?.delta.content ?? ""; usage = chunk.usage ?? usage; }
    return text.includes("Paris") && usage.completion_tokens > 0;
  },
  async "openai (Node): runTools runs the loop"() {
    const call = { ...tools[0].function, parse: JSON.parse, function: async ({ city }) => (city === "Dublin" ? result : "?") };
    const runner = client.chat.completions.runTools({ model, messages: weather, temperature: 0, tools: [{ type: "function", function: call }], ...quiet });
    return (await runner.finalContent()).includes("rainy");
  },
  async "openai (Node): abort ends a stream"() {
    const stream = await client.chat.completions.create({ model, messages: france, stream: true, max_tokens: 4000, ...quiet });
    for await (const _ of stream) { stream.controller.abort(); }
    const reply = await client.chat.completions.create({ model, messages: france, temperature: 0, ...quiet });
    return reply.choices[0].message.content.includes("Paris");
  },
  async "openai (Node): errors"() {
    const error = await client.chat.completions.create({ model: "gpt-4o", messages: france }).catch((error) => error);
    const field = await client.chat.completions.create({ model, messages: france, temperature: -1 }).catch((error) => error);
    return error.status === 404 && error.code === "model_not_found" && field.status === 400 && field.param === "temperature";
  },
  async "openai (Node): responses"() {
    const reply = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0, reasoning: { effort: "none" } });
    return reply.output_text.includes("Paris");
  },
  async "AI SDK: generateText"() {
    const { text, usage } = await generateText({ model: lily, prompt: france[0].content, temperature: 0, maxRetries: 0 });
    return text.includes("Paris") && usage.outputTokens > 0;
  },
  async "AI SDK: reasoning is apart"() {
    const { text, reasoningText } = await generateText({ model: lily, prompt: "What is 27 + 58?", temperature: 0, maxRetries: 0 });
    return text.includes("85") && reasoningText.length > 0;
  },
  async "AI SDK: streamText with usage"() {
    const stream = streamText({ model: lily, prompt: france[0].content, temperature: 0, maxRetries: 0 });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    return text.includes("Paris") && (await stream.usage).inputTokens > 0 && (await stream.finishReason) === "stop";
  },
  async "AI SDK: tools in several steps"() {
    const reply = await generateText({ model: lily, prompt: weather[0].content, temperature: 0, maxRetries: 0, tools: sdkTools, stopWhen: stepCountIs(3) });
    return reply.steps.length === 2 && reply.text.includes("rainy");
  },
  async "AI SDK: streamed tools"() {
    const stream = streamText({ model: lily, prompt: weather[0].content, temperature: 0, maxRetries: 0, tools: sdkTools, stopWhen: stepCountIs(3) });
    const calls = [];
    for await (const part of stream.fullStream) if (part.type === "tool-call") calls.push(part);
    return calls.length === 1 && calls[0].input.city === "Dublin" && (await stream.text).includes("rainy");
  },
  async "AI SDK: generateObject by a schema"() {
    const { object } = await generateObject({ model: lily, prompt: "Ada is 36 years old and likes green.", schema: person, temperature: 0, maxOutputTokens: 400, maxRetries: 0 });
    return person.safeParse(object).success;
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  const result = await check().catch((error) => `threw ${String(error.message).slice(0, 200)}`);
  if (result !== true) failed += 1;
  console.log(result === true ? `ok      ${name}` : `FAILED  ${name}: ${result}`);
}
process.exit(failed ? 1 : 0);
