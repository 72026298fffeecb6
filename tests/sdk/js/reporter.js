// Tells each case as one line of JSON: {file, name, ok, why}. tests/sdk/test_javascript.py makes a test of each.

export default async function* reporter(source) {
  for await (const { type, data } of source) {
    if (type === "test:pass" || type === "test:fail") {
      const error = data.details?.error;
      const why = error ? String(error.cause?.stack ?? error.stack ?? error) : "";
      yield `${JSON.stringify({ file: data.file ?? "", name: data.name, ok: type === "test:pass", why })}\n`;
    }
  }
}
