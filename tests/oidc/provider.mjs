// An OpenID provider for tests: a certified one, node-oidc-provider, whose keys and tokens a test can spoil.
//
// Prints `listening on ISSUER`. What tests ask beside the protocol, all with GET:
//   /control/rotate                            another signing key from now on; the old one is forgotten
//   /control/token?sub=&aud=&lifetime=&key=    a token as the provider would sign it; with key=foreign by somebody else

import { createServer } from 'node:http';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import Provider from 'oidc-provider';

const GROUPS = { ada: ['gpu-admins', 'everybody'], bob: ['vision', 'everybody'], eve: ['everybody'] };

const client = (id) => ({
  client_id: id,
  application_type: 'native',
  token_endpoint_auth_method: 'none',
  redirect_uris: ['http://127.0.0.1/callback', 'http://127.0.0.1/api/v1/session/callback'],
  grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
  response_types: ['code'],
});

let count = 0;
async function newKey() {
  const { privateKey } = await generateKeyPair('RS256', { extractable: true });
  count += 1;
  return { privateKey, jwk: { ...(await exportJWK(privateKey)), kid: `key-${count}`, use: 'sig', alg: 'RS256' } };
}

function provider(issuer, key) {
  const claims = (sub) => ({ sub, preferred_username: sub, email: `${sub}@example.org`, groups: GROUPS[sub] ?? [] });
  return new Provider(issuer, {
    clients: [client('sluice')],
    jwks: { keys: [key.jwk] },
    scopes: ['openid', 'offline_access', 'profile', 'email', 'groups'],
    claims: { openid: ['sub'], profile: ['preferred_username'], email: ['email'], groups: ['groups'] },
    conformIdTokenClaims: false,
    findAccount: async (_, sub) => ({ accountId: sub, claims: async () => claims(sub) }),
    issueRefreshToken: async () => true,
    features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
    cookies: { keys: ['a test'] },
  });
}

async function token(issuer, key, asked) {
  const { privateKey } = asked.get('key') === 'foreign' ? await newKey() : key;
  const sub = asked.get('sub');
  const now = Math.floor(Date.now() / 1000);
  const until = now + Number(asked.get('lifetime'));
  return new SignJWT({ preferred_username: sub, groups: GROUPS[sub] ?? [] })
    .setProtectedHeader({ alg: 'RS256', kid: asked.get('kid') ?? key.jwk.kid })
    .setIssuer(asked.get('iss') ?? issuer)
    .setSubject(sub)
    .setAudience(asked.get('aud'))
    .setIssuedAt(Math.min(now, until) - 1)
    .setExpirationTime(until)
    .sign(privateKey);
}

const server = createServer();
server.listen(0, '127.0.0.1', async () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  let key = await newKey();
  let answer = provider(issuer, key).callback();
  server.on('request', async (request, response) => {
    const url = new URL(request.url, issuer);
    if (url.pathname === '/control/rotate') {
      key = await newKey();
      answer = provider(issuer, key).callback();
      response.end('done');
    } else if (url.pathname === '/control/token') {
      response.end(await token(issuer, key, url.searchParams));
    } else {
      answer(request, response);
    }
  });
  console.log(`listening on ${issuer}`);
});

// Whoever started it is gone.
process.stdin.resume().on('end', () => process.exit());
