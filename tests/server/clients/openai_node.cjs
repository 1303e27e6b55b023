// The `openai` package for Node against the base address that is given: prints what it read as JSON.
const OpenAI = require("openai").default ?? require("openai");

const tool = {
  type: "function",
  function: { name: "get_weather", parameters: { type: "object", properties: { city: { enum: ["Oslo", "Rome"] } }, required: ["city"] } },
};
const messages = [{ role: "user", content: "Will it rain?" }];
const shared = { model: "tiny", messages, max_tokens: 200 };

async function main() {
  const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
  const out = {};
  out.models = (await client.models.list()).data.map((model) => model.id);
  out.whole = (await client.chat.completions.create(shared)).choices[0].message.content;
  out.streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...shared, stream: true })) {
    out.streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  const named = { tools: [tool], tool_choice: { type: "function", function: { name: "get_weather" } }, parallel_tool_calls: false };
  const answer = await client.chat.completions.create({ ...shared, ...named });
  out.call = JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments);
  const runner = client.chat.completions.stream({ ...shared, ...named });
  out.streamedCall = JSON.parse((await runner.finalChatCompletion()).choices[0].message.tool_calls[0].function.arguments);
  const response = await client.responses.create({ model: "tiny", input: "Will it rain?", max_output_tokens: 200 });
  out.response = response.output_text;
  const stream = client.responses.stream({ model: "tiny", input: "Will it rain?", max_output_tokens: 200 });
  out.streamedResponse = (await stream.finalResponse()).output_text;
  try {
    await client.responses.create({ model: "tiny", input: "a", store: true });
  } catch (error) {
    out.refused = error.status;
  }
  console.log(JSON.stringify(out));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
