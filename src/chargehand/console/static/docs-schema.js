// A schema of the OpenAPI document for people: its type in words, its rules as short phrases, its fields as a list, an example.

import { html } from "./dom.js";
import { own, plural } from "./words.js";

let schemas = {};
export function useSchemas(found) {
  schemas = found;
}

const isGiven = (value) => value !== undefined && value !== null;
const isEmpty = (value) => typeof value === "object" && Object.keys(value).length === 0;
const kindsOf = (schema) => (schema.anyOf ?? []).filter(({ type }) => type !== "null");
export const codes = (words) => words.map((word, n) => html`${n ? ", " : ""}<code>${word}</code>`);

// Resolves $ref and removes "or null", so that the result has the type and the rules.
export function resolved(schema) {
  const { $ref, anyOf = [], ...rest } = schema;
  if ($ref) {
    const name = $ref.split("/").pop();
    return resolved({ title: name, ...schemas[name], ...rest });
  }
  const kinds = kindsOf(schema);
  return kinds.length === 1 ? { ...resolved(kinds[0]), ...rest, nullable: anyOf.length > 1 } : schema;
}

// Descriptions use little of Markdown: paragraphs, "- " lists and `code`.
export function prose(text) {
  const inline = (block) => block.split(/`([^`]+)`/).map((part, n) => (n % 2 ? html`<code>${part}</code>` : part));
  const blocks = (text ?? "").trim().split(/\n\s*\n|\n(?=- )/);
  return html`<div class="prose">${blocks.filter(Boolean).map((block) => html`<p>${inline(block.replace(/^- /, ""))}</p>`)}</div>`;
}

function typeName(schema) {
  const s = resolved(schema);
  if (s.anyOf) return [...new Set(s.anyOf.map(typeName))].join(" or ");
  return plainTypeName(s) + (s.nullable ? " or null" : "");
}

function plainTypeName(s) {
  if (s.enum) return typeof s.enum[0];
  if (s.type === "array") return `list of ${typeName(s.items ?? {})}`;
  if (s.properties) return s.title ?? "object";
  if (typeof s.additionalProperties === "object") return `map of ${typeName(s.additionalProperties)}`;
  return (s.type ?? "any JSON") + (s.format ? ` (${s.format})` : "");
}

function range(low, high, unit) {
  if (low === undefined && high === undefined) return "";
  if (low === high) return `exactly ${low}${unit}`;
  if (high === undefined) return `at least ${low}${unit}`;
  return low === undefined ? `at most ${high}${unit}` : `${low} to ${high}${unit}`;
}

function rules(schema) {
  const s = resolved(schema);
  const choices = s.enum ?? resolved(s.items || {}).enum;
  const values = (list) => codes(list.map((value) => JSON.stringify(value)));
  const found = [
    range(s.minimum, s.maximum, ""),
    s.exclusiveMinimum !== undefined && `over ${s.exclusiveMinimum}`,
    range(s.minLength || undefined, s.maxLength, " characters"),
    range(s.minProperties || undefined, s.maxProperties, " entries"),
    range(s.minItems || undefined, s.maxItems, " items"),
    s.pattern !== undefined && html`matches <code>${s.pattern}</code>`,
    choices && html`one of ${values(choices)}`,
    isGiven(s.default) && html`default ${values([s.default])}`,
  ];
  return found.filter(Boolean).map((rule) => html`<span class="rule">${rule}</span>`);
}

// The objects with fields that a schema contains, also in lists, maps and unions.
function shapes(schema) {
  const s = resolved(schema);
  if (s.properties) return [s];
  return [...kindsOf(s), s.items, s.additionalProperties].filter((part) => part instanceof Object).flatMap(shapes);
}

export function fieldRow({ name, schema, required, description }, above = []) {
  const nested = shapes(schema).filter(({ title }) => !above.includes(title)); // a type may contain itself
  return html`<li class="field">
    <div class="field-head">
      <code>${name}</code><span class="ink2">${typeName(schema)}</span>
      ${required ? html`<span class="need">required</span>` : html`<span class="rule">optional</span>`}${rules(schema)}
    </div>
    ${prose(description ?? ownDescription(schema))}${nested.map((shape) => nest(shape, above))}
  </li>`;
}

// The description of a field, not of the type it refers to: that one is shown with the type's own fields.
function ownDescription(schema) {
  const [kind, ...others] = kindsOf(schema);
  return schema.description ?? (others.length || kind?.$ref ? undefined : kind?.description);
}

function fields(shape, above) {
  const inside = [...above, shape.title];
  const row = ([name, schema]) => fieldRow({ name, schema, required: shape.required?.includes(name) }, inside);
  return html`<ul>${Object.entries(shape.properties).map(row)}</ul>`;
}

function nest(shape, above = []) {
  const others = shape.additionalProperties === false ? ", no others" : "";
  const size = plural(Object.keys(shape.properties).length, "field") + others;
  return html`<details class="nest" open>
    <summary><b>${shape.title ?? "object"}</b> <span class="rule">${size}</span></summary>
    ${prose(shape.description)}${fields(shape, above)}
  </details>`;
}

export function schemaView(schema) {
  const s = resolved(schema);
  if (s.properties) return html`${prose(s.description)}${fields(s, [])}`;
  return html`<div class="field-head"><span class="ink2">${typeName(schema)}</span>${rules(schema)}</div>
    ${prose(s.description)}${shapes(schema).map((shape) => nest(shape))}`;
}

const lowest = (s) => (s.exclusiveMinimum !== undefined ? s.exclusiveMinimum + 1 : (s.minimum ?? 0));
const SAMPLES = {
  object: sampleObject,
  array: ({ items = {}, minItems }, ...how) => (how[0] || minItems ? [example(items, ...how)] : []),
  string: (s) => (s.format === "date-time" ? "2030-01-31T12:00:00Z" : "string".padEnd(s.minLength ?? 0, "-")).slice(0, s.maxLength),
  integer: lowest,
  number: lowest,
  boolean: () => false,
};

// With every field, or only with those that are required. A type may contain itself: it is left out inside of itself.
export function example(schema, whole, above = []) {
  const s = resolved(schema);
  if (s.examples?.length) return s.examples[0];
  if (isGiven(s.default) && !(whole && isEmpty(s.default))) return s.default;
  if (s.enum) return s.enum[0];
  if (s.anyOf) return example(kindsOf(s)[0], whole, above);
  return own(SAMPLES, s.type)?.(s, whole, above) ?? {};
}

function sampleObject(s, whole, above) {
  const inside = [...above, s.title];
  const isAgain = (schema) => shapes(schema).some(({ title }) => inside.includes(title));
  const wanted = ([name, schema]) => s.required?.includes(name) || (whole && !isAgain(schema));
  const others = s.additionalProperties instanceof Object && whole ? [["key", s.additionalProperties]] : [];
  const entries = [...Object.entries(s.properties ?? {}).filter(wanted), ...others];
  return Object.fromEntries(entries.map(([name, schema]) => [name, example(schema, whole, inside)]));
}
