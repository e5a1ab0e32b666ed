#!/usr/bin/env node
// A browser whose user, $SLUICE_TEST_USER, signs in and agrees to everything: it follows links and fills in the first form of each page.

const user = process.env.SLUICE_TEST_USER;
const cookies = new Map();

function attributes(tag) {
  return Object.fromEntries([...tag.matchAll(/([a-z-]+)="([^"]*)"/gi)].map(([, name, value]) => [name.toLowerCase(), value]));
}

function form(page, url) {
  const found = page.match(/<form\b[^>]*>[\s\S]*?<\/form>/i)?.[0];
  if (!found) return undefined;
  const values = new URLSearchParams();
  for (const [tag] of found.matchAll(/<input\b[^>]*>/gi)) {
    const { name, value } = attributes(tag);
    if (name) values.set(name, name === 'login' || name === 'password' ? user : (value ?? ''));
  }
  const { action } = attributes(found.match(/<form\b[^>]*>/i)[0]);
  return { url: new URL(action?.replaceAll('&amp;', '&') ?? url, url), body: values };
}

let next = { url: new URL(process.argv[2]) };
for (let pages = 0; next && pages < 30; pages += 1) {
  const { url, body } = next;
  const response = await fetch(url, {
    method: body ? 'POST' : 'GET',
    body,
    redirect: 'manual',
    headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
  });
  for (const line of response.headers.getSetCookie()) {
    const [, name, value] = line.match(/^([^=]+)=([^;]*)/);
    if (value) cookies.set(name, value);
    else cookies.delete(name);
  }
  const location = response.headers.get('location');
  const page = await response.text();
  next = location ? { url: new URL(location, url) } : form(page, url);
}
