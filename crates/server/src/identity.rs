//! Who comes with a token of an identity provider (OpenID Connect) instead of one of this server's.
//!
//! ```text
//! sluice login ── code + PKCE or device code ─▶ provider ── ID token ─▶ sluice ── Bearer ─▶ server
//!                                                  ▲                                          │
//!                                                  └───────── discovery, keys (JWKS) ─────────┘
//! ```
//! A token counts if the provider has signed it, for this installation, and it has not expired
//! (OpenID Connect Core 1.0, section 3.1.3.7). Its nonce is checked by the client that asked for
//! it. Nothing of it is stored: the first rule that fits its claims says what its holder is, and
//! the same person is the same holder with every new token.
//!
//! Provider and rules are declared, and in the database; every server of it follows them.

mod sign_in;

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use openidconnect::core::{CoreIdToken, CoreIdTokenVerifier, CoreJwsSigningAlgorithm, CoreProviderMetadata};
use openidconnect::{ClaimsVerificationError, ClientId, IssuerUrl, Nonce, SignatureVerificationError};
use serde_json::{Map, Value};
use sluice_api::client::Web;
use sluice_api::identity::{Identity, Rule};
use sluice_api::problem::{Kind, Problem};
use sluice_api::text::is_deceptive;
use sluice_api::token::{Login, PROVIDER_PREFIX, Role, Token};
use tokio::sync::{Mutex, Semaphore};

use crate::auth::Principal;

pub(crate) use sign_in::Attempt;

/// Bytes of a token; a few hundred groups fit in.
const TOKEN_MAX: usize = 16 << 10;
/// Keys are fetched again after this.
const KEYS_AGE_MAX: Duration = Duration::from_secs(3600);
/// A token with an unknown key has them fetched again, but no more often than this.
const KEYS_AGE_MIN: Duration = Duration::from_secs(5);
/// A provider that is declared is asked for its keys, and answers within this time.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// People who sign in to the web view; each of them has a thread wait for the provider.
const EXCHANGES_MAX: usize = 8;
/// Signatures by the provider's own key. Never a secret that is shared, and never none.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// The provider that counts now, if there is one.
#[derive(Default)]
pub(crate) struct Current {
    provider: RwLock<Option<Arc<Provider>>>,
    /// Held by the task that looks what the database names: the last one to look has seen the
    /// latest.
    pub(crate) looking: Mutex<()>,
}

impl Current {
    pub(crate) fn get(&self) -> Option<Arc<Provider>> {
        self.provider.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on this one; its keys stay if only what is said of it has changed.
    pub(crate) fn set(&self, declared: Option<Identity>) {
        let known = self.get();
        if known.as_ref().map(|provider| &provider.declared) == declared.as_ref() {
            return;
        }
        let made = declared.map(|declared| Provider::new(declared, known.as_deref())).transpose();
        let provider = made.unwrap_or_else(|cause| {
            tracing::warn!("the identity provider is not used: {cause}");
            None
        });
        *self.provider.write().unwrap_or_else(PoisonError::into_inner) = provider.map(Arc::new);
    }
}

/// A provider, and what it said of itself last, with its keys.
pub(crate) struct Provider {
    declared: Identity,
    issuer: IssuerUrl,
    web: Web,
    keys: Arc<Mutex<Option<Keys>>>,
    /// Codes that are exchanged for tokens at the same time.
    exchanges: Semaphore,
}

#[derive(Clone)]
struct Keys {
    /// With the keys.
    metadata: Arc<CoreProviderMetadata>,
    at: Instant,
}

impl Provider {
    fn new(declared: Identity, before: Option<&Provider>) -> Result<Provider, String> {
        let issuer = check(&declared)?;
        let same = before.filter(|before| before.issuer == issuer);
        let keys = same.map(|same| Arc::clone(&same.keys)).unwrap_or_default();
        Ok(Provider { declared, issuer, web: Web::new()?, keys, exchanges: Semaphore::new(EXCHANGES_MAX) })
    }

    pub(crate) fn issuer(&self) -> &str {
        self.issuer.as_str()
    }

    /// What `sluice login` needs to know.
    pub(crate) fn login(&self) -> Login {
        let Identity { client_id, scopes, .. } = self.declared.clone();
        Login { issuer: self.issuer.to_string(), client_id, scopes }
    }

    /// Whether a token may be of this provider: three parts, as no token of this server has.
    pub(crate) fn may_know(text: &str) -> bool {
        text.split('.').count() == 3
    }

    /// Whose token it is, if it is one that holds now.
    pub(crate) async fn recognise(&self, text: &str) -> Result<Principal, Problem> {
        let issuer = self.issuer.as_str();
        let refused = |detail: String| Problem::new(Kind::Unauthenticated, detail);
        let unreadable =
            || refused(format!("the token in the header Authorization is no ID token of {issuer}"));
        if text.len() > TOKEN_MAX {
            return Err(unreadable());
        }
        let token = CoreIdToken::from_str(text).map_err(|_| unreadable())?;
        let mut keys = self.keys(KEYS_AGE_MAX).await?;
        let mut verified = self.verify(&token, &keys);
        let unknown_key =
            ClaimsVerificationError::SignatureVerification(SignatureVerificationError::NoMatchingKey);
        if verified == Err(unknown_key) {
            // The provider may have a new key since.
            keys = self.keys(KEYS_AGE_MIN).await?;
            verified = self.verify(&token, &keys);
        }
        let holder = verified.map_err(|error| refused(reason(&error, issuer)))?;
        let claims = payload(text).ok_or_else(unreadable)?;
        let rule = self.declared.rules.iter().find(|rule| fits(rule, &claims)).ok_or_else(|| {
            let name = name(&claims, &holder.subject);
            let detail =
                format!("{issuer} knows {name}, but no rule of this server says what they may do here");
            Problem::new(Kind::Forbidden, detail)
        })?;
        let name = name(&claims, &holder.subject);
        Ok(Principal { token: holder.token(issuer, name, rule), node: None })
    }

    fn verify(&self, token: &CoreIdToken, keys: &Keys) -> Result<Holder, ClaimsVerificationError> {
        let own = [self.declared.client_id.clone()];
        let audiences = if self.declared.audiences.is_empty() { &own[..] } else { &self.declared.audiences };
        let nonce_of_the_client = |_: Option<&Nonce>| Ok(());
        let mut last = Err(ClaimsVerificationError::InvalidAudience("no audience is expected".into()));
        for audience in audiences {
            let (client, issuer) = (ClientId::new(audience.clone()), self.issuer.clone());
            let verifier =
                CoreIdTokenVerifier::new_public_client(client, issuer, keys.metadata.jwks().clone())
                    .set_allowed_algs(ALGORITHMS);
            let claims = token.claims(&verifier, nonce_of_the_client);
            last = claims.map(|claims| Holder {
                subject: claims.subject().to_string(),
                from_ms: claims.issue_time().timestamp_millis().max(0) as u64,
                until_ms: claims.expiration().timestamp_millis().max(0) as u64,
            });
            if !matches!(last, Err(ClaimsVerificationError::InvalidAudience(_))) {
                break;
            }
        }
        last
    }

    /// The provider's keys, fetched unless those that are here are younger than this. Who comes
    /// meanwhile waits.
    async fn keys(&self, age_max: Duration) -> Result<Keys, Problem> {
        let mut kept = self.keys.lock().await;
        if let Some(keys) = kept.as_ref().filter(|keys| keys.at.elapsed() < age_max) {
            return Ok(keys.clone());
        }
        let (web, issuer) = (self.web.clone(), self.issuer.clone());
        let fetch = move || CoreProviderMetadata::discover(&issuer, &|request| web.ask(request));
        let fetched = tokio::task::spawn_blocking(fetch).await;
        match fetched
            .map_err(|error| error.to_string())
            .and_then(|found| found.map_err(|error| causes(&error)))
        {
            Ok(metadata) => {
                let keys = Keys { metadata: Arc::new(metadata), at: Instant::now() };
                *kept = Some(keys.clone());
                Ok(keys)
            }
            Err(cause) => {
                tracing::warn!("{}: {cause}", self.issuer.as_str());
                // Old keys are as good as they were; a new one is not among them.
                kept.clone().ok_or_else(|| {
                    let detail = format!("{} does not answer; ask again in a while", self.issuer.as_str());
                    Problem::new(Kind::Unavailable, detail)
                })
            }
        }
    }
}

/// What keeps a declared provider's tokens from being taken now: it does not answer, or not as a
/// provider does. It may be yet to come.
pub(crate) async fn unreachable(declared: Identity) -> Option<String> {
    let issuer = declared.issuer.clone();
    let provider = match Provider::new(declared, None) {
        Ok(provider) => provider,
        Err(cause) => return Some(cause),
    };
    let asked = tokio::time::timeout(ANSWER_TIME_MAX, provider.keys(KEYS_AGE_MAX)).await;
    let is_there = asked.is_ok_and(|keys| keys.is_ok());
    (!is_there).then(|| {
        format!("identity provider {issuer} does not answer this server, which cannot check its tokens until it does")
    })
}

/// What a token that counts says of its holder.
#[derive(Debug, PartialEq)]
struct Holder {
    subject: String,
    from_ms: u64,
    until_ms: u64,
}

impl Holder {
    fn token(self, issuer: &str, name: String, rule: &Rule) -> Token {
        let who = blake3::hash(format!("{issuer}\n{}", self.subject).as_bytes()).to_hex();
        Token {
            id: format!("{PROVIDER_PREFIX}{}", &who[..20]),
            tenant: rule.tenant.clone(),
            role: rule.role,
            name,
            created_at_ms: self.from_ms,
            expires_at_ms: self.until_ms,
            node: None,
            revoked: false,
            last_used_at_ms: None,
        }
    }
}

/// Whether a token's holder is meant.
fn fits(rule: &Rule, claims: &Map<String, Value>) -> bool {
    match claims.get(&rule.claim) {
        Some(Value::Array(values)) => values.contains(&rule.is),
        Some(value) => *value == rule.is,
        None => false,
    }
}

/// More would be looked through with every request.
const RULES_MAX: usize = 1000;

/// Whether a provider may be trusted, and no rule grants what no token may do; answers with its
/// issuer.
pub(crate) fn check(declared: &Identity) -> Result<IssuerUrl, String> {
    let issuer = IssuerUrl::new(declared.issuer.clone());
    let issuer = issuer.map_err(|error| format!("issuer {:?}: {error}", declared.issuer))?;
    let url = issuer.url();
    let host = url.host_str().unwrap_or_default();
    let number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let near = host == "localhost" || number.is_ok_and(|number| number.is_loopback());
    if url.scheme() != "https" && !near {
        return Err(format!("issuer {url}: keys that come in plain text prove nothing; https://"));
    }
    if declared.rules.is_empty() {
        return Err("rules: there are none, so no user may do anything".into());
    }
    if declared.rules.len() > RULES_MAX {
        return Err(format!("rules: up to {RULES_MAX}"));
    }
    for rule in &declared.rules {
        if rule.role == Role::Node {
            return Err(format!("rules: {}: nodes join with a token of their own", rule.claim));
        }
        if rule.role == Role::Platform && !rule.tenant.is_root() {
            return Err(format!("rules: {}: role platform is for /", rule.claim));
        }
    }
    Ok(issuer)
}

/// The claims of a token that has been verified.
fn payload(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&BASE64.decode(text.split('.').nth(1)?).ok()?).ok()
}

/// By which people and the audit log know them.
fn name(claims: &Map<String, Value>, subject: &str) -> String {
    let given = ["preferred_username", "email", "name"].iter().find_map(|claim| claims.get(*claim)?.as_str());
    given.unwrap_or(subject).chars().filter(|c| !is_deceptive(*c)).take(100).collect()
}

fn reason(error: &ClaimsVerificationError, issuer: &str) -> String {
    use SignatureVerificationError::NoMatchingKey;
    match error {
        ClaimsVerificationError::Expired(_) => "the token has expired; `sluice login` gets a new one".into(),
        ClaimsVerificationError::InvalidAudience(_) => {
            format!("the token of {issuer} is for another audience than this server")
        }
        ClaimsVerificationError::InvalidIssuer(_) => format!("the token is of another issuer than {issuer}"),
        ClaimsVerificationError::SignatureVerification(NoMatchingKey) => {
            format!("the token is signed with a key that {issuer} does not have")
        }
        ClaimsVerificationError::SignatureVerification(_) => {
            format!("the token's signature is not of {issuer}")
        }
        other => format!("the token of {issuer} does not hold: {other}"),
    }
}

/// With what lies beneath, which a library's first line leaves out.
fn causes(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(text: &str) -> Result<Identity, String> {
        let identity: Identity = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        check(&identity).map(|_| identity)
    }

    #[test]
    fn keys_stay_while_the_issuer_does() {
        let declared = |issuer: &str, role: &str| {
            let rules = format!("[{{claim: a, is: b, tenant: acme, role: {role}}}]");
            identity(&format!("{{issuer: '{issuer}', client_id: c, rules: {rules}}}")).unwrap()
        };
        let current = Current::default();
        current.set(Some(declared("https://id.example", "viewer")));
        let first = current.get().unwrap();
        current.set(Some(declared("https://id.example", "viewer")));
        assert!(Arc::ptr_eq(&first, &current.get().unwrap()), "nothing has changed");
        current.set(Some(declared("https://id.example", "member")));
        let second = current.get().unwrap();
        assert!(Arc::ptr_eq(&first.keys, &second.keys) && second.declared.rules[0].role == Role::Member);
        current.set(Some(declared("https://other.example", "member")));
        assert!(!Arc::ptr_eq(&first.keys, &current.get().unwrap().keys));
        current.set(None);
        assert!(current.get().is_none());
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let identity = identity(
            "{issuer: 'https://id.example', client_id: sluice, rules: [\
             {claim: groups, is: admins, tenant: /, role: platform}, \
             {claim: groups, is: vision, tenant: acme/vision, role: member}, \
             {claim: hd, is: example.org, tenant: acme, role: viewer}]}",
        )
        .unwrap();
        let check = |claims: Value, expect: Option<&str>| {
            let rule = identity.rules.iter().find(|rule| fits(rule, claims.as_object().unwrap()));
            assert_eq!(rule.map(|rule| rule.tenant.as_str()), expect, "{claims}");
        };
        check(serde_json::json!({ "groups": ["vision", "admins"] }), Some("/"));
        check(serde_json::json!({ "groups": ["vision"], "hd": "example.org" }), Some("acme/vision"));
        check(serde_json::json!({ "hd": "example.org" }), Some("acme"));
        check(serde_json::json!({ "groups": ["vision2"], "hd": "example.com" }), None);
        check(serde_json::json!({}), None);
    }

    #[test]
    fn settings_that_would_let_strangers_in_are_refused() {
        let check = |text: &str, part: &str| {
            let error = identity(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        let rules = "rules: [{claim: a, is: b, tenant: acme, role: member}]";
        check(&format!("{{issuer: 'http://id.example', client_id: c, {rules}}}"), "https://");
        check("{issuer: 'https://id.example', client_id: c, rules: []}", "there are none");
        check(&format!("{{issuer: 'https://id.example', {rules}}}"), "client_id");
        for (role, part) in [("node", "token of their own"), ("platform", "is for /")] {
            let rules = rules.replace("member", role);
            check(&format!("{{issuer: 'https://id.example', client_id: c, {rules}}}"), part);
        }
        check("{issuer: 'no URL', client_id: c, rules: []}", "issuer \"no URL\"");
        assert!(identity(&format!("{{issuer: 'http://127.0.0.1:1', client_id: c, {rules}}}")).is_ok());
    }
}
