// The page of a new server without any jobs: three commands to begin with.

import { html } from "./dom.js";
import { copy, icon } from "./parts.js";
import { quoted } from "./words.js";

export function welcome(overview, targets) {
  const at = location.origin;
  const auth = overview.auth ? ` \\\n  -H "Authorization: Bearer $CHARGEHAND_TOKEN"` : "";
  const model = (targets.find((t) => t.state === "up" && t.installed.length) || { installed: ["tiny-stories"] })
    .installed[0];
  const chat = `{\n    "model": ${JSON.stringify(model)},\n    "messages": [\n      {"role": "user", "content": "Say hello"}\n    ]\n  }`;
  const kinds = new Set(overview.doors.map((door) => door.kind));
  const doors = [
    [
      "inference",
      "target",
      "Inference",
      "A chat for a model. It waits until a target is there to take it.",
      `curl ${at}/jobs${auth} \\\n  -d ${quoted(chat)}`,
    ],
    [
      "task",
      "task",
      "Tasks",
      "Something for a worker that pulls. It waits until one claims it.",
      `curl ${at}/v1/codeq/tasks${auth} \\\n  -d '{\n    "command": "greet",\n    "payload": {"name": "fox"}\n  }'\n\n# and a worker for it\nchargehand worker --command greet -- cat`,
    ],
    [
      "provision",
      "server",
      "Provisioning",
      "A bare server, reached over Redfish, that should run an image.",
      `chargehand provision server add RACK1-07 \\\n  --bmc https://10.0.0.7 --user admin --probe\nchargehand provision submit RACK1-07 \\\n  recipe.json --watch`,
    ],
  ];
  return html`<div class="stack">
    <section class="panel first" aria-labelledby="h-first">
      <div class="head">
        <h1 id="h-first">Nothing here yet</h1>
        <p>Chargehand is running and has no jobs. Send one through any of its doors; this page fills by itself.</p>
      </div>
      <div class="doors">
        ${doors
          .filter(([kind]) => kinds.has(kind))
          .map(
            ([kind, shape, name, text, command]) => html`<section aria-labelledby="d-${kind}">
          <h2 id="d-${kind}">${icon(shape)}${name}</h2>
          <p>${text}</p>
          <div class="code-wrap"><pre class="code" id="c-${kind}" tabindex="0">${command}</pre>${copy(command, "Copy the command")}</div>
        </section>`,
          )}
      </div>
    </section>
  </div>`;
}
