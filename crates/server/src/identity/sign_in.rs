//! Signing in to the web view at the provider: an authorization code with PKCE (OpenID Connect
//! Core 1.0, section 3.1; RFC 7636).
//!
//! The server keeps nothing meanwhile. What ties the answer to the browser that asked is in a
//! cookie of that browser.

use openidconnect::core::{CoreAuthenticationFlow, CoreClient};
use openidconnect::{
    AuthorizationCode, ClientId, CsrfToken, Nonce, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope,
    TokenResponse,
};
use sluice_api::problem::{Kind, Problem};

use super::{KEYS_AGE_MAX, Provider, causes, payload};

/// What a browser keeps while its user is with the provider.
pub(crate) struct Attempt {
    state: String,
    nonce: String,
    verifier: String,
}

impl Attempt {
    /// As it is in a cookie: base64 for URLs, and points between.
    pub(crate) fn text(&self) -> String {
        format!("{}.{}.{}", self.state, self.nonce, self.verifier)
    }

    pub(crate) fn read(text: &str) -> Option<Attempt> {
        let mut parts = text.split('.').filter(|part| !part.is_empty()).map(str::to_owned);
        let attempt = Attempt { state: parts.next()?, nonce: parts.next()?, verifier: parts.next()? };
        parts.next().is_none().then_some(attempt)
    }

    /// Whether the provider's answer with this state is one to this attempt.
    pub(crate) fn is_answered_by(&self, state: &str) -> bool {
        self.state == state
    }
}

impl Provider {
    /// Where the user signs in, and what the browser keeps until it comes back to the URL `back`.
    pub(crate) async fn attempt(&self, back: &str) -> Result<(String, Attempt), Problem> {
        let keys = self.keys(KEYS_AGE_MAX).await?;
        let client_id = ClientId::new(self.declared.client_id.clone());
        let client = CoreClient::from_provider_metadata((*keys.metadata).clone(), client_id, None)
            .set_redirect_uri(RedirectUrl::new(back.to_owned()).map_err(no_url)?);
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let scopes = self.declared.scopes.iter().filter(|&scope| wanted(scope)).cloned().map(Scope::new);
        let (url, state, nonce) = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                CsrfToken::new_random,
                Nonce::new_random,
            )
            .add_scopes(scopes)
            .set_pkce_challenge(challenge)
            .url();
        let attempt = Attempt {
            state: state.into_secret(),
            nonce: nonce.secret().clone(),
            verifier: verifier.into_secret(),
        };
        Ok((url.to_string(), attempt))
    }

    /// The ID token that the provider gives for a code. Its signature and claims are not checked
    /// yet, but that it answers this attempt is.
    pub(crate) async fn token_for(
        &self,
        back: &str,
        attempt: Attempt,
        code: String,
    ) -> Result<String, Problem> {
        let busy = |_| Problem::new(Kind::Unavailable, "too many people sign in at this moment; try again");
        let _one_of_few = self.exchanges.try_acquire().map_err(busy)?;
        let keys = self.keys(KEYS_AGE_MAX).await?;
        let client_id = ClientId::new(self.declared.client_id.clone());
        let client = CoreClient::from_provider_metadata((*keys.metadata).clone(), client_id, None)
            .set_redirect_uri(RedirectUrl::new(back.to_owned()).map_err(no_url)?);
        let web = self.web.clone();
        let verifier = PkceCodeVerifier::new(attempt.verifier);
        let issuer = self.issuer.as_str();
        let refused = |cause: String| {
            Problem::new(Kind::Unauthenticated, format!("{issuer} gave no token for the code: {cause}"))
        };
        let exchange = move || {
            let request = client.exchange_code(AuthorizationCode::new(code)).map_err(|e| causes(&e))?;
            let answer = request.set_pkce_verifier(verifier).request(&|request| web.ask(request));
            let answer = answer.map_err(|error| causes(&error))?;
            answer.id_token().map(ToString::to_string).ok_or_else(|| "is `openid` among the scopes?".into())
        };
        let token = tokio::task::spawn_blocking(exchange).await;
        let token = token.map_err(|error| error.to_string()).and_then(|given| given).map_err(refused)?;
        let nonce = payload(&token).and_then(|claims| claims.get("nonce")?.as_str().map(str::to_owned));
        match nonce {
            Some(nonce) if nonce == attempt.nonce => Ok(token),
            _ => Err(refused("what it gave is not for this attempt".into())),
        }
    }
}

/// `openid` is asked for anyway, and a browser keeps no refresh token.
fn wanted(scope: &str) -> bool {
    !["openid", "offline_access"].contains(&scope)
}

fn no_url(error: openidconnect::url::ParseError) -> Problem {
    Problem::new(Kind::Malformed, format!("the header Host makes no URL: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_read_as_it_was_written_and_nothing_else_is() {
        let text = "state_1.nonce-2.verifier3";
        let attempt = Attempt::read(text).unwrap();
        assert_eq!(attempt.text(), text);
        assert!(attempt.is_answered_by("state_1") && !attempt.is_answered_by("state"));
        for wrong in ["", "a.b", "a..c", "a.b.c.d", "..", "a.b."] {
            assert!(Attempt::read(wrong).is_none(), "{wrong}");
        }
    }
}
