// Files for spreadsheets (RFC 4180).

type Value = string | number | boolean | null | undefined;

/** One line. */
export const line = (values: Value[]): string => `${values.map(field).join(',')}\r\n`;

function field(value: Value): string {
  let text = String(value ?? '');
  // A spreadsheet takes text that begins so as a formula.
  if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Gives the user a file of what the page has. */
export function download(name: string, lines: string[]): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob(lines, { type: 'text/csv' }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
